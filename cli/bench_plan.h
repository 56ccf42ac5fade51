// The flags of `baton bench` and what they ask for.
#ifndef BATON_CLI_BENCH_PLAN_H_
#define BATON_CLI_BENCH_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/report.h"
#include "cli/bench/runner.h"
#include "cli/bench/workload.h"
#include "proto/inference.pb.h"

namespace CLI {
class App;
}

namespace baton::cli {

struct BenchFlags {
  std::vector<uint64_t> concurrency;  // closed; several: a sweep
  std::vector<double> rate;           // open; several: a sweep
  bool burst = false;
  std::string trace;
  double burstiness = 1;
  uint64_t max_concurrency = 0;
  double trace_speed = 1, trace_scale = 1;

  std::optional<uint64_t> requests;
  double duration_s = 0;
  uint32_t warmups = 1;
  double timeout_s = 0;

  uint32_t input_tokens = 128, output_tokens = 64;
  double range_ratio = 0;
  uint32_t prefix_tokens = 0, num_prefixes = 1;
  std::string prompts;
  uint64_t seed = 0;
  float temperature = 0;
  bool stop_at_eos = false;

  std::vector<std::string> goodput;
  std::vector<double> percentiles = {90, 99};
  std::vector<std::string> save;
  std::string save_requests;
  bool detailed = false;
  std::string label;
};

void AddBenchFlags(CLI::App* app, BenchFlags* flags);

struct BenchRun {
  bench::Load load;
  bench::RunInfo info;
};
struct BenchPlan {
  std::unique_ptr<bench::Workload> workload;
  std::vector<BenchRun> runs;
  bench::Goodput goodput;
};
// INVALID_ARGUMENT for flags that do not go together or cannot be met by `model`; reads the files that they name.
absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& flags, const v1::Model& model);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_PLAN_H_
