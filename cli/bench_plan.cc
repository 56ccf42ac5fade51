#include "cli/bench_plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cli/bench/arrivals.h"
#include "cli/bench/trace.h"
#include "cli/connect.h"
#include "common/read_file.h"

namespace baton::cli {
namespace {

constexpr uint64_t kMaxRequests = 1'000'000;
constexpr size_t kMaxFileBytes = 512 << 20;
// Runs of one sweep ask different prompts, or the second would find the first one's in the prefix cache.
constexpr uint64_t kIndicesPerRun = 1 << 20;

absl::Status CheckRange(absl::string_view flag, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", value, "; expected ", low, " to ", high));
}

absl::Status CheckFlags(const BenchFlags& f) {
  const int modes = !f.concurrency.empty() + !f.rate.empty() + f.burst + !f.trace.empty();
  if (modes > 1) {
    return absl::InvalidArgumentError(
        "--concurrency, --rate, --burst and --trace are different kinds of load; give one of them");
  }
  if (!f.trace.empty() && !f.prompts.empty()) {
    return absl::InvalidArgumentError("--trace brings its own prompts; leave --prompts out");
  }
  if (f.burst && f.duration_s > 0) return absl::InvalidArgumentError("--burst has no --duration; give --requests");
  for (const uint64_t c : f.concurrency) {
    if (absl::Status s = CheckRange("--concurrency", static_cast<double>(c), 1, 100'000); !s.ok()) return s;
  }
  for (const double r : f.rate) {
    if (absl::Status s = CheckRange("--rate", r, 1e-3, 1e6); !s.ok()) return s;
  }
  for (const double p : f.percentiles) {
    if (absl::Status s = CheckRange("--percentiles", p, 0, 100); !s.ok()) return s;
  }
  for (const auto& [flag, value, low, high] : std::initializer_list<std::tuple<const char*, double, double, double>>{
           {"--requests", static_cast<double>(f.requests.value_or(1)), 1, static_cast<double>(kMaxRequests)},
           {"--burstiness", f.burstiness, 0.01, 1000},
           {"--trace-speed", f.trace_speed, 1e-4, 1e6},
           {"--trace-scale", f.trace_scale, 1e-4, 100},
           {"--duration", f.duration_s, 0, 1e6},
           {"--input-tokens", f.input_tokens, 1, 1e8},
           {"--output-tokens", f.output_tokens, 1, 1e8},
           {"--range-ratio", f.range_ratio, 0, 1},
           {"--num-prefixes", f.num_prefixes, 1, 1e6},
           {"--warmups", f.warmups, 0, 1000},
           {"--temperature", f.temperature, 0, 100}}) {
    if (absl::Status s = CheckRange(flag, value, low, high); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// A rate's default is 20 s of it, a concurrency's four rounds.
uint64_t DefaultRequests(double per_unit, double units) {
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(per_unit * units)), 16, kMaxRequests);
}

// Load and words shared by all runs.
BenchRun NewRun(const BenchFlags& f, const v1::Model& model, absl::Duration timeout, const std::string& workload) {
  BenchRun run;
  run.load.timeout = timeout;
  run.load.temperature = f.temperature;
  run.load.seed = f.seed;
  run.load.ignore_eos = !f.stop_at_eos;
  run.load.max_in_flight = f.max_concurrency;
  if (f.max_concurrency > 0) run.info.max_concurrency = f.max_concurrency;
  run.info.label = f.label;
  run.info.model = model.name();
  run.info.seed = f.seed;
  run.info.burstiness = f.burstiness;
  run.info.workload = workload;
  return run;
}

absl::StatusOr<bench::ScaledTrace> ReadTrace(const BenchFlags& f, const v1::Model& model, BenchRun* run) {
  const absl::StatusOr<std::string> text = ReadSmallFile(f.trace, kMaxFileBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<bench::Trace> trace = bench::ParseTrace(*text, f.trace);
  if (!trace.ok()) return trace.status();
  bench::ScaledTrace scaled = bench::Scale(*trace, {.speed = f.trace_speed,
                                                    .length = f.trace_scale,
                                                    .max_context = model.max_context(),
                                                    .max_requests = f.requests.value_or(0),
                                                    .max_seconds = f.duration_s,
                                                    .seed = f.seed});
  if (scaled.num_too_long > 0) {
    run->info.notes.push_back(absl::StrCat(scaled.num_too_long,
                                           " of the trace's requests were left out: longer than the ",
                                           model.max_context(), " tokens of the context"));
  }
  if (trace->grid_s > 0) {
    run->info.notes.push_back(
        absl::StrCat("the trace's times are ticks of ", trace->grid_s, " s; arrivals were spread evenly over each"));
  }
  if (scaled.rows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("No request of ", f.trace, " fits the context of ",
                                                   model.max_context(),
                                                   " tokens; scale it, as with --trace-scale 0.05"));
  }
  return scaled;
}

absl::StatusOr<std::unique_ptr<bench::Workload>> MakeWorkload(const BenchFlags& f, const v1::Model& model) {
  if (f.prompts.empty()) {
    return bench::MakeSynthetic({.seed = f.seed,
                                 .vocab_size = model.vocab_size(),
                                 .input_tokens = f.input_tokens,
                                 .output_tokens = f.output_tokens,
                                 .range_ratio = f.range_ratio,
                                 .prefix_tokens = f.prefix_tokens,
                                 .num_prefixes = f.num_prefixes},
                                model.max_context());
  }
  const absl::StatusOr<std::string> text = ReadSmallFile(f.prompts, kMaxFileBytes);
  if (!text.ok()) return text.status();
  return bench::MakeFromFile(*text, f.prompts, f.output_tokens);
}

std::string WorkloadWords(const BenchFlags& f) {
  if (!f.trace.empty()) {
    return absl::StrCat("trace ", f.trace, ", speed ", f.trace_speed, ", lengths times ", f.trace_scale);
  }
  if (!f.prompts.empty()) return absl::StrCat("prompts of ", f.prompts, ", ", f.output_tokens, " tokens out");
  std::string words = absl::StrCat(f.input_tokens, " tokens in, ", f.output_tokens, " out");
  if (f.range_ratio > 0) absl::StrAppend(&words, ", both give or take ", 100 * f.range_ratio, " %");
  if (f.prefix_tokens > 0) {
    absl::StrAppend(&words, ", ", f.prefix_tokens, " of them one of ", f.num_prefixes, " shared prefixes");
  }
  return words;
}

void AddOpenRun(const BenchFlags& f, double rate, BenchRun run, std::vector<BenchRun>* runs) {
  run.info.mode = "open";
  run.info.request_rate = rate;
  bench::ArrivalOptions arrivals{.rate = rate, .burstiness = f.burstiness, .seed = f.seed};
  arrivals.max_seconds = f.duration_s;
  arrivals.max_requests = f.requests.value_or(f.duration_s > 0 ? kMaxRequests : DefaultRequests(rate, 20));
  run.load.starts_s = bench::Arrivals(arrivals);
  run.info.num_prompts = run.load.starts_s.size();
  runs->push_back(std::move(run));
}

void AddClosedRun(const BenchFlags& f, uint64_t concurrency, BenchRun run, std::vector<BenchRun>* runs) {
  run.info.mode = "closed";
  run.info.max_concurrency = concurrency;
  run.load.max_in_flight = concurrency;
  run.load.max_seconds = f.duration_s;
  run.load.num_requests =
      f.requests.value_or(f.duration_s > 0 ? kMaxRequests : DefaultRequests(static_cast<double>(concurrency), 4));
  run.info.num_prompts = run.load.num_requests;
  runs->push_back(std::move(run));
}

}  // namespace

absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& f, const v1::Model& model) {
  if (absl::Status s = CheckFlags(f); !s.ok()) return s;
  const absl::StatusOr<absl::Duration> timeout = ParseTimeout(f.timeout_s);
  if (!timeout.ok()) return timeout.status();
  BenchPlan plan;
  const absl::StatusOr<bench::Goodput> goodput = bench::ParseGoodput(f.goodput);
  if (!goodput.ok()) return goodput.status();
  plan.goodput = *goodput;
  BenchRun run = NewRun(f, model, *timeout, WorkloadWords(f));
  if (!f.trace.empty()) {
    absl::StatusOr<bench::ScaledTrace> trace = ReadTrace(f, model, &run);
    if (!trace.ok()) return trace.status();
    for (const bench::TraceRow& row : trace->rows) run.load.starts_s.push_back(row.at_s);
    run.info.mode = "trace";
    run.info.num_prompts = trace->rows.size();
    plan.workload = bench::MakeFromTrace(*std::move(trace), f.seed, model.vocab_size());
    plan.runs.push_back(std::move(run));
    return plan;
  }
  absl::StatusOr<std::unique_ptr<bench::Workload>> workload = MakeWorkload(f, model);
  if (!workload.ok()) return workload.status();
  plan.workload = *std::move(workload);
  if (f.burst) {
    run.info.mode = "burst";
    run.info.num_prompts = f.requests.value_or(16);
    run.load.starts_s.assign(run.info.num_prompts, 0);
    plan.runs.push_back(std::move(run));
    return plan;
  }
  for (const double rate : f.rate) AddOpenRun(f, rate, run, &plan.runs);
  std::vector<uint64_t> concurrency = f.concurrency;
  if (f.rate.empty() && concurrency.empty()) concurrency = {8};
  for (const uint64_t c : concurrency) AddClosedRun(f, c, run, &plan.runs);
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    plan.runs[i].load.first_index = i * kIndicesPerRun;
    if (plan.runs[i].info.num_prompts == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("No request arrives within --duration ", f.duration_s, " at that --rate; raise one of them"));
    }
  }
  return plan;
}

void AddBenchFlags(CLI::App* app, BenchFlags* f) {
  const std::string load = "Load (one of the first four; default: --concurrency 8)";
  app->add_option("--concurrency", f->concurrency, "Closed loop: so many requests at any time; 1,2,4 is a sweep")
      ->delimiter(',')
      ->group(load);
  app->add_option("--rate", f->rate, "Open loop: requests a second, whatever becomes of them; 1,2,4 is a sweep")
      ->delimiter(',')
      ->group(load);
  app->add_flag("--burst", f->burst, "All --requests at once")->group(load);
  app->add_option("--trace", f->trace, "Replay a trace: Mooncake JSONL or Azure CSV")->group(load);
  app->add_option("--burstiness", f->burstiness, "With --rate: 1 is Poisson (default), less comes in clumps")
      ->group(load);
  app->add_option("--max-concurrency", f->max_concurrency,
                  "With --rate, --burst or --trace: at most so many at once; waiting counts as latency")
      ->group(load);
  app->add_option("--trace-speed", f->trace_speed, "Replay so many times faster; default 1")->group(load);
  app->add_option("--trace-scale", f->trace_scale, "Factor of the trace's token counts; default 1")->group(load);
  app->add_option("--requests,--num-prompts", f->requests,
                  "How many; default: 4 for each of --concurrency, 20 s of --rate, the whole trace; at least 16")
      ->group(load);
  app->add_option("--duration", f->duration_s, "Send for so many seconds")->group(load);
  app->add_option("--warmups", f->warmups, "Requests before the first run that count for nothing; default 1")
      ->group(load);
  app->add_option("--timeout", f->timeout_s, "Seconds a request may take; default: the router's limit")->group(load);
  const std::string prompts = "Prompts";
  app->add_option("--input-tokens", f->input_tokens, "Tokens of a prompt, made from the seed; default 128")
      ->group(prompts);
  app->add_option("--output-tokens", f->output_tokens, "Tokens of an answer; default 64")->group(prompts);
  app->add_option("--range-ratio", f->range_ratio, "Lengths vary by this, as 0.2 for 20 % either way; default 0")
      ->group(prompts);
  app->add_option("--prefix-tokens", f->prefix_tokens, "Of a prompt, shared with others; default 0")->group(prompts);
  app->add_option("--num-prefixes", f->num_prefixes, "Different shared prefixes; default 1")->group(prompts);
  app->add_option("--prompts", f->prompts, "A file: a prompt a line, or JSON lines {\"prompt\", \"output_tokens\"}")
      ->group(prompts);
  app->add_option("--seed", f->seed, "Of prompts, arrivals and sampling; default 0")->group(prompts);
  app->add_option("--temperature", f->temperature, "Default 0")->group(prompts);
  app->add_flag("--stop-at-eos", f->stop_at_eos, "Answers may end before --output-tokens")->group(prompts);
  const std::string results = "Results";
  app->add_option("--goodput", f->goodput, "Limits in ms, as ttft:200 tpot:50 (also e2el): count what keeps them")
      ->group(results);
  app->add_option("--percentiles", f->percentiles, "Default 90,99")->delimiter(',')->group(results);
  app->add_option("--save", f->save, "Write results there too; .json, .csv or .html; may be repeated")
      ->allow_extra_args(false)
      ->group(results);
  app->add_option("--save-requests", f->save_requests, "Write a CSV line for each request there")->group(results);
  app->add_flag("--detailed", f->detailed, "JSON with every request's lengths and latencies")->group(results);
  app->add_option("--label", f->label, "A name for the results")->group(results);
}

}  // namespace baton::cli
