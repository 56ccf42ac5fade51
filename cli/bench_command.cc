// `baton bench`: load on a cluster that runs, and what it measured.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/bench/html_report.h"
#include "cli/bench/live_line.h"
#include "cli/bench/report.h"
#include "cli/bench/runner.h"
#include "cli/bench_plan.h"
#include "cli/command.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "cli/remote_generator.h"
#include "cli/settings.h"
#include "common/rpc/channel.h"

namespace baton::cli {
namespace {

using bench::RunResult;
using Json = nlohmann::ordered_json;

// Before the load, so that an hour's results do not find a folder that is not there.
absl::Status CheckSavePaths(const BenchFlags& flags) {
  std::vector<std::string> paths = flags.save;
  for (const std::string& path : paths) {
    if (absl::EndsWith(path, ".json") || absl::EndsWith(path, ".csv") || absl::EndsWith(path, ".html")) continue;
    return absl::InvalidArgumentError(absl::StrCat("--save ", path, " ends in none of .json, .csv and .html"));
  }
  if (!flags.save_requests.empty()) paths.push_back(flags.save_requests);
  for (const std::string& path : paths) {
    if (std::ofstream(path, std::ios::app).good()) continue;
    return absl::InvalidArgumentError(absl::StrCat("Cannot write ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

Json ResultsToJson(const std::vector<RunResult>& results, bool detailed) {
  if (results.size() == 1) return RunToJson(results[0], detailed);
  Json runs = Json::array();
  for (const RunResult& r : results) runs.push_back(RunToJson(r, detailed));
  return {{"runs", std::move(runs)}};
}

absl::Status WriteWhole(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("Cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status Save(const BenchFlags& flags, const std::vector<RunResult>& results) {
  for (const std::string& path : flags.save) {
    const std::string text = absl::EndsWith(path, ".html")  ? bench::HtmlReport(results)
                             : absl::EndsWith(path, ".csv") ? bench::RunsToCsv(results)
                                                            : ResultsToJson(results, flags.detailed).dump(2) + "\n";
    if (absl::Status s = WriteWhole(path, text); !s.ok()) return s;
  }
  if (flags.save_requests.empty()) return absl::OkStatus();
  return WriteWhole(flags.save_requests, bench::RequestsToCsv(results));
}

// The runs of a plan one after the other, until Ctrl-C.
class Bench {
 public:
  Bench(const BenchPlan& plan, const BenchFlags& flags, const std::string& router, std::shared_ptr<grpc::Channel> channel,
        const Output& out)
      : plan_(plan), flags_(flags), router_(router), out_(out), channel_(std::move(channel)) {}

  std::vector<RunResult> Run() {
    if (flags_.warmups > 0) WarmUp();
    std::vector<RunResult> results;
    for (const BenchRun& planned : plan_.runs) {
      if (interrupted_) break;
      if (plan_.runs.size() > 1) out_.Note(absl::StrCat("run ", results.size() + 1, " of ", plan_.runs.size()));
      bench::LiveLine line(&out_, planned.info.num_prompts);
      bench::RunOutcome outcome =
          RunLoad(planned.load, [&line](const bench::Progress& progress) { line.Show(progress); });
      RunResult result;
      result.info = planned.info;
      result.info.router = router_;
      result.info.date = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
      result.metrics = bench::Measure(outcome.records, outcome.duration_s, plan_.goodput, flags_.percentiles);
      result.records = std::move(outcome.records);
      result.cpu_s = outcome.cpu_s;
      result.interrupted = outcome.interrupted;
      results.push_back(std::move(result));
    }
    return results;
  }

  // From any thread. False when it was interrupted before.
  bool Interrupt() {
    MutexLock lock(&mu_);
    if (interrupted_.exchange(true)) return false;
    if (runner_ != nullptr) runner_->Interrupt();
    return true;
  }
  bool interrupted() const { return interrupted_; }

 private:
  bench::RunOutcome RunLoad(const bench::Load& load, std::function<void(const bench::Progress&)> on_progress) {
    bench::Runner runner(channel_, plan_.workload.get(), load, std::move(on_progress));
    {
      MutexLock lock(&mu_);
      runner_ = &runner;
      if (interrupted_) runner.Interrupt();
    }
    bench::RunOutcome outcome = runner.Run();
    MutexLock lock(&mu_);
    runner_ = nullptr;
    return outcome;
  }

  // Connections and caches of code; its prompts are others than those measured.
  void WarmUp() {
    bench::Load load = plan_.runs[0].load;
    load.starts_s.clear();
    load.max_seconds = 0;
    load.max_in_flight = 1;
    load.num_requests = flags_.warmups;
    load.first_index = uint64_t{1} << 40;
    RunLoad(load, nullptr);
  }

  const BenchPlan& plan_;
  const BenchFlags& flags_;
  const std::string router_;
  const Output& out_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> interrupted_{false};
  Mutex mu_;
  bench::Runner* runner_ ABSL_GUARDED_BY(mu_) = nullptr;
};

int Finish(const BenchFlags& flags, const std::vector<RunResult>& results, bool interrupted, const Output& out) {
  uint64_t completed = 0, failed = 0;
  const RunResult* first_failed = nullptr;
  for (const RunResult& r : results) {
    completed += r.metrics.completed;
    failed += r.metrics.failed;
    if (first_failed == nullptr && r.metrics.failed > 0) first_failed = &r;
  }
  if (results.empty())
    return out.Fail(absl::CancelledError("Interrupted before the load began."), "", kExitInterrupted);
  if (completed == 0 && failed > 0) {
    // Not out.Fail with JSON: the results are the document.
    if (!out.json()) out.Data(FormatRun(*first_failed));
    return out.Fail(absl::UnavailableError(absl::StrCat(
                        "All ", failed, " requests failed, the first with: ", first_failed->metrics.first_error)),
                    "baton status  (and baton doctor)", kExitFailure);
  }
  const absl::Status saved = Save(flags, results);
  if (out.json()) {
    out.Json(ResultsToJson(results, flags.detailed));
  } else if (results.size() == 1) {
    out.Data(FormatRun(results[0]));
  } else {
    out.Data(FormatSweep(results));
  }
  if (!saved.ok()) return out.Fail(saved, "check --save", kExitFailure);
  if (interrupted) {
    out.Note("Interrupted; these are the figures until then.");
    return kExitInterrupted;
  }
  return kExitOk;
}

int RunBench(const BenchFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton bench --help", kExitUsage);
  // Before the libraries start threads. A second Ctrl-C does not wait for the requests to end.
  std::atomic<Bench*> running{nullptr};
  Interrupts interrupts([&running] {
    Bench* bench = running.load();
    if (bench == nullptr || !bench->Interrupt()) ::_exit(kExitInterrupted);
  });
  if (absl::Status s = CheckSavePaths(flags); !s.ok()) return out.Fail(s, "baton bench --help", kExitUsage);
  const std::string& router = settings->config.router();
  v1::ListModelsResponse models;
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = RouterChannel(settings->config);
  if (!channel.ok()) return out.Fail(channel.status(), "baton bench --help", kExitUsage);
  if (absl::Status s = RemoteGenerator(*channel, router, absl::InfiniteDuration()).ListModels(&models); !s.ok()) {
    return out.Fail(s, NextAfter(s, "bench"), kExitFailure);
  }
  if (models.models().empty()) {
    return out.Fail(absl::FailedPreconditionError(absl::StrCat("The router at ", router, " serves no model yet.")),
                    "baton status", kExitFailure);
  }
  const absl::StatusOr<BenchPlan> plan = MakeBenchPlan(flags, models.models(0));
  if (!plan.ok()) return out.Fail(plan.status(), "baton bench --help", ExitCodeOf(plan.status()));
  Bench bench(*plan, flags, router, *channel, out);
  running = &bench;
  const std::vector<RunResult> results = bench.Run();
  const int exit_code = Finish(flags, results, bench.interrupted(), out);
  // From here on Ctrl-C ends the program at once.
  running = nullptr;
  return exit_code;
}

}  // namespace

void AddBench(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* sub = app->add_subcommand("bench", "Measure a running cluster under load: TTFT, ITL, throughput, goodput");
  AddBenchFlags(sub, flags.get());
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout, field names as `vllm bench serve`");
  sub->footer(
      HelpFooter({"baton bench --concurrency 1,2,4,8,16 --save sweep.html",
                  "baton bench --rate 4 --burstiness 0.5 --duration 60 --goodput ttft:500 tpot:100",
                  "baton bench --burst --requests 32 --prefix-tokens 64",
                  "baton bench --trace mooncake_conversation.jsonl --trace-scale 0.02 --trace-speed 10 --requests 200"},
                 {"router"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunBench(*flags, *invocation); }; });
}

}  // namespace baton::cli
