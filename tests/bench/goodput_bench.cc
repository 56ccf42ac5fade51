// Goodput under latency promises: the highest rate of Poisson arrivals at which 90 % of requests get their first token, and
// 99 % of the gaps between tokens stay, within limits; for Baton disaggregated (1 + 1), aggregated, choosing by itself, and
// llama-server (not part of this project; its path is the caller's), on two cores in all. T and I, llama-server's unloaded
// TTFT for 1,024 tokens and its unloaded gap, are measured in the same run, and the systems take turns trial by trial.
// See README.md for the command and docs/BENCHMARKS.md for what came out.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/bench/goodput_load.h"
#include "tests/bench/goodput_plot.h"
#include "tests/e2e/cluster.h"

namespace baton::bench {
namespace {

struct Flags {
  std::string model, llama_server, json, svg;
  double seconds = 9;
  double grace = 3;
  int steps = 4;
  int itl_trials = 10;
  int vocab = 49152;
  uint64_t seed = 1;
};

struct Slo {
  const char* name;
  double ttft_in_t, itl_in_i;
};
constexpr Slo kSlos[] = {{"tight TTFT", 1, 10}, {"balanced", 3, 4}, {"tight ITL", 10, 1.5}};

// A server under test and the processes behind it.
struct System {
  std::string name;
  std::unique_ptr<e2e::Cluster> cluster;
  std::unique_ptr<e2e::Process> llama;
  std::unique_ptr<Target> target;
};

void Die(const absl::Status& status) {
  std::fprintf(stderr, "goodput_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die(absl::UnavailableError("no free port"));
  }
  ::close(fd);
  return ntohs(address.sin_port);
}

System StartLlama(const Flags& flags) {
  System system;
  system.name = "llama-server";
  const int port = FreePort();
  auto process = e2e::Process::Start({flags.llama_server, "-m", flags.model, "-t", "2", "-tb", "2", "-np", "8", "-c", "10240",
                                      "--host", "127.0.0.1", "--port", absl::StrCat(port), "--log-disable"});
  if (!process.ok()) Die(process.status());
  system.llama = *std::move(process);
  system.target = LlamaTarget(port, flags.vocab);
  for (int i = 0; i < 1200; ++i) {  // a busy machine loads for a while
    Job job;
    job.prompt_tokens = 16;
    job.output_tokens = 4;
    if (system.target->Run(job, absl::Now(), absl::Now() + absl::Seconds(5)).complete) return system;
    absl::SleepFor(absl::Milliseconds(100));
  }
  Die(absl::UnavailableError(absl::StrCat("llama-server does not answer: ", system.llama->stderr_text())));
  return system;
}

System StartBaton(const Flags& flags, const std::string& name, const std::string& mode, double ttft_s, double itl_s) {
  System system;
  system.name = name;
  e2e::ClusterOptions options{.model = flags.model, .flags = {"--log-level=error"}, .mode = mode};
  if (ttft_s > 0) {
    options.flags.push_back(absl::StrFormat("--ttft-slo-ms=%d", static_cast<int>(ttft_s * 1000)));
    options.flags.push_back(absl::StrFormat("--itl-slo-ms=%d", std::max(1, static_cast<int>(itl_s * 1000))));
  }
  if (mode == "aggregated") {
    options.prefill = 0;
    options.decode_flags = {"--threads=2"};
  }
  auto cluster = e2e::Cluster::Start(options);
  if (!cluster.ok()) Die(cluster.status());
  system.cluster = *std::move(cluster);
  system.target = BatonTarget(system.cluster->router_address(), flags.vocab);
  // What a worker knows of its own cost it learns from its first requests.
  for (uint64_t i = 0; i < 6; ++i) {
    system.target->Run({.at = {}, .prompt_tokens = 200 + static_cast<int>(i) * 150, .output_tokens = 8, .seed = 900 + i},
                       absl::Now(), absl::Now() + absl::Seconds(10));
  }
  return system;
}

std::vector<System> StartBatons(const Flags& flags, double ttft_s, double itl_s) {
  std::vector<System> systems;
  systems.push_back(StartBaton(flags, "Baton 1 + 1", "disaggregated", ttft_s, itl_s));
  systems.push_back(StartBaton(flags, "Baton aggregated", "aggregated", ttft_s, itl_s));
  systems.push_back(StartBaton(flags, "Baton auto", "auto", ttft_s, itl_s));
  return systems;
}

// The share by which the p99 gap of four running streams rises while a prompt of 1,024 tokens is in prefill.
double ItlRise(Target* target, uint64_t seed) {
  constexpr int kStreams = 4;
  std::atomic<int> warm{0};
  std::atomic<bool> stop{false};
  std::vector<std::vector<double>> at(kStreams);
  const absl::Time zero = absl::Now(), until = zero + absl::Seconds(30);
  std::vector<std::thread> streams;
  for (int s = 0; s < kStreams; ++s) {
    streams.emplace_back([&, s] {
      target->Run({.at = {}, .prompt_tokens = 64, .output_tokens = 900, .seed = seed * 100 + static_cast<uint64_t>(s)}, zero,
                  until, [&, s] {
                    at[s].push_back(absl::ToDoubleSeconds(absl::Now() - zero));
                    if (at[s].size() == 10) ++warm;
                    return !stop;
                  });
    });
  }
  while (warm < kStreams && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
  const double quiet_from = absl::ToDoubleSeconds(absl::Now() - zero);
  absl::SleepFor(absl::Milliseconds(1200));
  const absl::Time sent = absl::Now();
  const Trace prompt = target->Run({.at = {}, .prompt_tokens = 1024, .output_tokens = 1, .seed = seed * 100 + 50}, sent, until);
  const double from = absl::ToDoubleSeconds(sent - zero), to = from + prompt.ttft();
  stop = true;
  for (std::thread& stream : streams) stream.join();
  std::vector<double> quiet, loaded;
  for (const std::vector<double>& times : at) {
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i - 1] >= quiet_from && times[i] <= from) quiet.push_back(times[i] - times[i - 1]);
      if (times[i] > from && times[i - 1] < to) loaded.push_back(times[i] - times[i - 1]);
    }
  }
  return Quantile(loaded, 0.99) / std::max(Quantile(quiet, 0.99), 1e-9) - 1;
}

struct Best {
  double rate = 0;
  Trial trial;  // at that rate
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {}

  void Run() {
    const absl::Time begin = absl::Now();
    System llama = StartLlama(flags_);
    Unloaded(llama.target.get());
    {
      std::vector<System> systems = StartBatons(flags_, 0, 0);
      Capacity(systems, llama);
      Rises(systems, llama);
    }
    for (const Slo& slo : kSlos) Search(slo, llama);
    std::printf("\n%s\nin %.1f min; generator's own processor time: at most %.0f %% of one core in a trial\n", Table().c_str(),
                absl::ToDoubleMinutes(absl::Now() - begin), 100 * generator_share_);
    Write();
  }

 private:
  void Unloaded(Target* llama) {
    std::vector<double> ttft, gaps;
    for (uint64_t i = 0; i < 5; ++i) {
      const Trace trace = llama->Run({.at = {}, .prompt_tokens = 1024, .output_tokens = 32, .seed = 50 + i}, absl::Now(),
                                     absl::Now() + absl::Seconds(60));
      if (!trace.complete) Die(absl::UnavailableError("llama-server did not finish an unloaded request"));
      ttft.push_back(trace.ttft());
      for (size_t k = 1; k < trace.token_at.size(); ++k) gaps.push_back(trace.token_at[k] - trace.token_at[k - 1]);
    }
    t_ = Quantile(ttft, 0.5);
    i_ = Quantile(gaps, 0.5);
    std::printf("llama-server unloaded: T = %.0f ms (1,024 tokens), I = %.2f ms\n", 1e3 * t_, 1e3 * i_);
    std::fflush(stdout);
  }

  void Capacity(std::vector<System>& systems, System& llama) {
    for (System* system : All(systems, llama)) {
      capacity_[system->name] = MeasureCapacity(system->target.get(), 16, absl::Seconds(flags_.seconds), flags_.seed);
      std::printf("capacity without any promise, 16 at once: %-18s %.2f requests/s\n", system->name.c_str(),
                  capacity_[system->name]);
      std::fflush(stdout);
    }
  }

  void Rises(std::vector<System>& systems, System& llama) {
    std::map<std::string, std::vector<double>> rises;
    for (int i = 0; i < flags_.itl_trials; ++i) {
      for (System* system : All(systems, llama)) {
        // `auto` does what one of the other two does.
        if (system->name != "Baton auto") {
          rises[system->name].push_back(ItlRise(system->target.get(), flags_.seed + static_cast<uint64_t>(i)));
        }
      }
    }
    for (auto& [name, values] : rises) {
      rise_[name] = Quantile(values, 0.5);
      std::printf("p99 gap of 4 streams while 1,024 tokens are in prefill: %-18s %+.0f %% (median of %zu)\n", name.c_str(),
                  100 * rise_[name], values.size());
    }
    std::fflush(stdout);
  }

  // Bisection between 0 and somewhat more than the capacity.
  void Search(const Slo& slo, System& llama) {
    const double ttft = slo.ttft_in_t * t_, itl = slo.itl_in_i * i_;
    std::vector<System> systems = StartBatons(flags_, ttft, itl);
    std::map<std::string, std::pair<double, double>> range;
    for (System* system : All(systems, llama)) range[system->name] = {0, 1.15 * capacity_[system->name]};
    for (int step = 0; step < flags_.steps; ++step) {
      for (System* system : All(systems, llama)) {
        auto& [low, high] = range[system->name];
        const double rate = (low + high) / 2;
        const Trial trial = RunTrial(system->target.get(),
                                     PoissonJobs(rate, flags_.seconds, flags_.seed + static_cast<uint64_t>(step)),
                                     absl::Seconds(flags_.grace) + absl::Seconds(ttft));
        const double first = trial.ttft_met(ttft), gaps = trial.itl_met(itl);
        const bool met = first >= 0.9 && gaps >= 0.99;
        (met ? low : high) = rate;
        if (met) best_[slo.name][system->name] = {rate, trial};
        generator_share_ = std::max(generator_share_, trial.generator_cpu / trial.seconds);
        std::printf("%-10s %-18s %6.2f/s: %s  TTFT %5.1f %% (p90 %.0f of %.0f ms), gaps %5.1f %% (p99 %.1f of %.1f ms), "
                    "%zu requests, generator %.2f s of processor\n",
                    slo.name, system->name.c_str(), rate, met ? "met   " : "missed", 100 * first,
                    1e3 * std::min(trial.ttft_quantile(0.9), 999.0), 1e3 * ttft, 100 * gaps, 1e3 * trial.gap_quantile(0.99),
                    1e3 * itl, trial.traces.size(), trial.generator_cpu);
        std::fflush(stdout);
      }
    }
  }

  static std::vector<System*> All(std::vector<System>& systems, System& llama) {
    std::vector<System*> all;
    for (System& system : systems) all.push_back(&system);
    all.push_back(&llama);
    return all;
  }

  std::vector<std::string> Names() const { return {"Baton 1 + 1", "Baton aggregated", "Baton auto", "llama-server"}; }
  double Rate(const char* slo, const std::string& name) const {
    const auto of_slo = best_.find(slo);
    if (of_slo == best_.end()) return 0;
    const auto it = of_slo->second.find(name);
    return it == of_slo->second.end() ? 0 : it->second.rate;
  }

  std::string Table() const {
    std::string out = "| requests/s | " + absl::StrJoin(Names(), " | ") + " |\n|---|---|---|---|---|\n";
    const auto row = [&](const std::string& name, const std::function<std::string(const std::string&)>& cell) {
      absl::StrAppend(&out, "| ", name, " |");
      for (const std::string& system : Names()) absl::StrAppend(&out, " ", cell(system), " |");
      out += "\n";
    };
    for (const Slo& slo : kSlos) {
      row(absl::StrFormat("%s (%gT = %.0f ms, %gI = %.1f ms)", slo.name, slo.ttft_in_t, 1e3 * slo.ttft_in_t * t_,
                          slo.itl_in_i, 1e3 * slo.itl_in_i * i_),
          [&](const std::string& system) { return absl::StrFormat("%.2f", Rate(slo.name, system)); });
    }
    row("no promise, 16 at once", [&](const std::string& s) { return absl::StrFormat("%.2f", capacity_.at(s)); });
    row("p99 gap while 1,024 tokens are in prefill", [&](const std::string& s) {
      const auto it = rise_.find(s);
      return it == rise_.end() ? std::string("-") : absl::StrFormat("%+.0f %%", 100 * it->second);
    });
    return out;
  }

  void Write() const {
    nlohmann::ordered_json json = {{"t_ms", 1e3 * t_}, {"i_ms", 1e3 * i_}, {"seconds", flags_.seconds},
                                   {"steps", flags_.steps}, {"generator_share", generator_share_}};
    std::vector<Bars> bars;
    for (const Slo& slo : kSlos) {
      Bars group{slo.name, {}};
      for (const std::string& name : Names()) {
        json["goodput"][slo.name][name] = Rate(slo.name, name);
        group.values.push_back(Rate(slo.name, name));
      }
      bars.push_back(group);
    }
    Bars all{"no promise", {}};
    for (const std::string& name : Names()) {
      json["capacity"][name] = capacity_.at(name);
      all.values.push_back(capacity_.at(name));
    }
    bars.push_back(all);
    json["p99_gap_rise"] = rise_;
    if (!flags_.json.empty()) std::ofstream(flags_.json) << json.dump(2) << "\n";
    if (!flags_.svg.empty()) std::ofstream(flags_.svg) << BarPlot("Goodput, SmolLM2-135M shape, Q8_0, two cores", "requests/s", Names(), bars);
  }

  const Flags flags_;
  double t_ = 0, i_ = 0;
  std::map<std::string, double> capacity_, rise_;
  std::map<std::string, std::map<std::string, Best>> best_;
  double generator_share_ = 0;
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Flags flags;
  CLI::App app{"Highest rate that keeps a latency promise: Baton in its modes, and llama-server"};
  app.add_option("--model", flags.model, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--llama-server", flags.llama_server, "llama.cpp's server program")->required()->check(CLI::ExistingFile);
  app.add_option("--seconds", flags.seconds, "Arrivals of one trial");
  app.add_option("--grace", flags.grace, "Seconds after the last arrival and its TTFT limit until what still runs is cut off");
  app.add_option("--steps", flags.steps, "Bisections of one search");
  app.add_option("--itl-trials", flags.itl_trials, "Trials of the gap while a prompt is in prefill");
  app.add_option("--vocab", flags.vocab, "Token ids below this");
  app.add_option("--seed", flags.seed, "Of the requests");
  app.add_option("--json", flags.json, "Where results go");
  app.add_option("--svg", flags.svg, "Where the plot goes");
  CLI11_PARSE(app, argc, argv);
  ::signal(SIGPIPE, SIG_IGN);
  baton::bench::Bench(flags).Run();
  return 0;
}
