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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/bench/goodput_load.h"
#include "tests/bench/goodput_plot.h"
#include "tests/e2e/cluster.h"

namespace baton::bench {
namespace {

struct Flags {
  std::string model, llama_server, json, svg;
  std::string parts = "capacity,rises,goodput";
  std::string promises = "tight TTFT,balanced,tight ITL";
  std::string systems = "1 + 1,aggregated,auto,llama-server";
  double seconds = 15;
  int min_requests = 12;
  double grace = 3;
  int steps = 5;
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
  } else {
    // One core for each, as an operator would: otherwise the system moves one phase's thread onto the other's core.
    options.prefill_flags = {"--cores=0"};
    options.decode_flags = {"--cores=1"};
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

// Keeps one core busy with nothing of a server's: sums in registers.
void Spin(absl::Time until) {
  volatile double sum = 0;
  while (absl::Now() < until) {
    double part = 0;
    for (int i = 0; i < 100000; ++i) part += static_cast<double>(i) * 1e-9;
    sum = sum + part;
  }
}

// The shares by which the median and the p99 gap of four running streams rise while something else goes on: a prompt of
// 1,024 tokens in prefill, or (`spin`) for as long a loop on a core, which is what the machine itself costs.
struct Rise {
  double median = 0, p99 = 0;
};
Rise ItlRise(Target* target, uint64_t seed, bool spin) {
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
  double took = 1.2;
  if (spin) {
    Spin(sent + absl::Seconds(took));
  } else {
    took = target->Run({.at = {}, .prompt_tokens = 1024, .output_tokens = 1, .seed = seed * 100 + 50}, sent, until).ttft();
  }
  const double from = absl::ToDoubleSeconds(sent - zero), to = from + took;
  stop = true;
  for (std::thread& stream : streams) stream.join();
  std::vector<double> quiet, loaded;
  for (const std::vector<double>& times : at) {
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i - 1] >= quiet_from && times[i] <= from) quiet.push_back(times[i] - times[i - 1]);
      if (times[i] > from && times[i - 1] < to) loaded.push_back(times[i] - times[i - 1]);
    }
  }
  const auto rise = [&](double q) { return Quantile(loaded, q) / std::max(Quantile(quiet, q), 1e-9) - 1; };
  return {rise(0.5), rise(0.99)};
}

constexpr double kTrialOverTtft = 1.2;
constexpr char kSpinning[] = "Baton 1 + 1 beside a loop";

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
      if (Part("rises")) Rises(systems, llama);
    }
    for (const Slo& slo : kSlos) {
      if (Part("goodput") && Asked(slo)) Search(slo, llama);
    }
    std::printf("\n%s\nin %.1f min; generator's own processor time: at most %.0f %% of one core in a trial\n", Table().c_str(),
                absl::ToDoubleMinutes(absl::Now() - begin), 100 * generator_share_);
    Write();
  }

 private:
  bool Asked(const Slo& slo) const { return absl::StrContains(flags_.promises, slo.name); }
  bool Part(const char* name) const { return absl::StrContains(flags_.parts, name); }

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
      // Also where a search begins, so it is needed for that, but may be coarse.
      const double seconds = Part("capacity") ? 4 * flags_.seconds : flags_.seconds;
      capacity_[system->name] = MeasureCapacity(system->target.get(), 16, absl::Seconds(seconds), flags_.seed);
      std::printf("capacity without any promise, 16 at once: %-18s %.2f requests/s\n", system->name.c_str(),
                  capacity_[system->name]);
      std::fflush(stdout);
    }
  }

  void Rises(std::vector<System>& systems, System& llama) {
    std::map<std::string, std::vector<Rise>> rises;
    for (int i = 0; i < flags_.itl_trials; ++i) {
      const uint64_t seed = flags_.seed + static_cast<uint64_t>(i);
      for (System* system : All(systems, llama)) {
        if (system->name == "Baton auto") continue;  // it does what one of the other two does
        rises[system->name].push_back(ItlRise(system->target.get(), seed, false));
        if (system->name == "Baton 1 + 1") rises[kSpinning].push_back(ItlRise(system->target.get(), seed + 1000, true));
      }
    }
    for (auto& [name, values] : rises) {
      std::vector<double> medians, p99s;
      for (const Rise& rise : values) {
        medians.push_back(rise.median);
        p99s.push_back(rise.p99);
      }
      rise_[name] = {Quantile(medians, 0.5), Quantile(p99s, 0.5)};
      std::printf("gaps of 4 streams while 1,024 tokens are in prefill: %-28s p99 %+.0f %%, median %+.0f %% (of %zu)\n",
                  name.c_str(), 100 * rise_[name].p99, 100 * rise_[name].median, values.size());
    }
    std::fflush(stdout);
  }

  struct Range {
    double low = 0, high = 0;  // met at low, missed at high; 0: not known yet
    double Next(double capacity) const {
      if (low > 0 && high > 0) return (low + high) / 2;
      if (low > 0) return 1.4 * low;
      return high > 0 ? high / 1.6 : 0.8 * capacity;
    }
  };

  // From somewhat below the capacity up or down by steps until the limit lies between two rates, then bisection.
  void Search(const Slo& slo, System& llama) {
    const double ttft = slo.ttft_in_t * t_, itl = slo.itl_in_i * i_;
    std::vector<System> systems = StartBatons(flags_, ttft, itl);
    std::map<std::string, Range> ranges;
    double baton = 0;  // of all its modes: a short measurement of one alone is coarse
    for (const System& system : systems) baton = std::max(baton, capacity_[system.name]);
    for (int step = 0; step < flags_.steps; ++step) {
      for (System* system : All(systems, llama)) {
        Range& range = ranges[system->name];
        const double rate = range.Next(std::max(system->llama != nullptr ? capacity_[system->name] : baton, 0.1));
        // A queue that grows must show: with arrivals for no longer than the first token may take, any rate would do.
        const double seconds = std::max({flags_.seconds, flags_.min_requests / rate, kTrialOverTtft * ttft});
        const Trial trial = RunTrial(system->target.get(),
                                     PoissonJobs(rate, seconds, flags_.seed + static_cast<uint64_t>(step)),
                                     absl::Seconds(flags_.grace) + absl::Seconds(ttft));
        const double first = trial.ttft_met(ttft), gaps = trial.itl_met(itl);
        const bool met = first >= 0.9 && gaps >= 0.99;
        (met ? range.low : range.high) = rate;
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

  bool Wanted(absl::string_view name) const {
    absl::ConsumePrefix(&name, "Baton ");
    return absl::StrContains(flags_.systems, name);
  }
  std::vector<System*> All(std::vector<System>& systems, System& llama) const {
    std::vector<System*> all;
    for (System& system : systems) {
      if (Wanted(system.name)) all.push_back(&system);
    }
    if (Wanted(llama.name)) all.push_back(&llama);
    return all;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const char* name : {"Baton 1 + 1", "Baton aggregated", "Baton auto", "llama-server"}) {
      if (Wanted(name)) names.push_back(name);
    }
    return names;
  }
  double Rate(const char* slo, const std::string& name) const {
    const auto of_slo = best_.find(slo);
    if (of_slo == best_.end()) return 0;
    const auto it = of_slo->second.find(name);
    return it == of_slo->second.end() ? 0 : it->second.rate;
  }

  std::string Table() const {
    std::string out = "| requests/s | " + absl::StrJoin(Names(), " | ") + " |\n|---|";
    for (size_t i = 0; i < Names().size(); ++i) out += "---|";
    out += "\n";
    const auto row = [&](const std::string& name, const std::function<std::string(const std::string&)>& cell) {
      absl::StrAppend(&out, "| ", name, " |");
      for (const std::string& system : Names()) absl::StrAppend(&out, " ", cell(system), " |");
      out += "\n";
    };
    for (const Slo& slo : kSlos) {
      if (!Asked(slo)) continue;
      row(absl::StrFormat("%s (%gT = %.0f ms, %gI = %.1f ms)", slo.name, slo.ttft_in_t, 1e3 * slo.ttft_in_t * t_,
                          slo.itl_in_i, 1e3 * slo.itl_in_i * i_),
          [&](const std::string& system) { return absl::StrFormat("%.2f", Rate(slo.name, system)); });
    }
    row("no promise, 16 at once", [&](const std::string& s) { return absl::StrFormat("%.2f", capacity_.at(s)); });
    row("p99 gap while 1,024 tokens are in prefill", [&](const std::string& s) {
      const auto it = rise_.find(s);
      return it == rise_.end() ? std::string("-") : absl::StrFormat("%+.0f %%", 100 * it->second.p99);
    });
    row("median gap, likewise", [&](const std::string& s) {
      const auto it = rise_.find(s);
      return it == rise_.end() ? std::string("-") : absl::StrFormat("%+.0f %%", 100 * it->second.median);
    });
    if (const auto it = rise_.find(kSpinning); it != rise_.end()) {
      absl::StrAppend(&out, "\nBaton 1 + 1 while a loop runs on the other core instead of prefill: p99 gap ",
                      absl::StrFormat("%+.0f %%, median %+.0f %%\n", 100 * it->second.p99, 100 * it->second.median));
    }
    return out;
  }

  void Write() const {
    nlohmann::ordered_json json = {{"t_ms", 1e3 * t_}, {"i_ms", 1e3 * i_}, {"seconds", flags_.seconds},
                                   {"steps", flags_.steps}, {"generator_share", generator_share_}};
    std::vector<Bars> bars;
    for (const Slo& slo : kSlos) {
      if (!Asked(slo)) continue;
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
    for (const auto& [name, rise] : rise_) json["gap_rise"][name] = {{"p99", rise.p99}, {"median", rise.median}};
    if (!flags_.json.empty()) std::ofstream(flags_.json) << json.dump(2) << "\n";
    if (!flags_.svg.empty()) std::ofstream(flags_.svg) << BarPlot("Goodput, SmolLM2-135M shape, Q8_0, two cores", "requests/s", Names(), bars);
  }

  const Flags flags_;
  double t_ = 0, i_ = 0;
  std::map<std::string, double> capacity_;
  std::map<std::string, Rise> rise_;
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
  app.add_option("--parts", flags.parts, "What to measure: capacity, rises (of gaps during a prefill), goodput; separated by commas");
  app.add_option("--promises", flags.promises, "Which: tight TTFT, balanced, tight ITL; separated by commas");
  app.add_option("--systems", flags.systems, "Which: 1 + 1, aggregated, auto, llama-server; separated by commas");
  app.add_option("--seconds", flags.seconds, "Arrivals of one trial, at least");
  app.add_option("--min-requests", flags.min_requests, "Requests of one trial, at least, on average");
  app.add_option("--grace", flags.grace, "Seconds after the last arrival and its TTFT limit until what still runs is cut off");
  app.add_option("--steps", flags.steps, "Trials of one search");
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
