// The results of a load test as words, JSON and CSV. Field names are those of `vllm bench serve`; what it does not have
// comes after them.
//
// Thread contract: pure functions.
#ifndef BATON_CLI_BENCH_REPORT_H_
#define BATON_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/metrics.h"
#include "cli/bench/record.h"

namespace baton::bench {

struct RunInfo {
  std::string date;  // as 20261129-183200
  std::string label;
  std::string model;
  std::string router;
  std::string mode;  // "closed", "open", "burst" or "trace"
  uint64_t num_prompts = 0;
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  std::optional<uint64_t> max_concurrency;
  uint64_t seed = 0;
  std::string workload;  // in words
  std::vector<std::string> notes;
};

struct RunResult {
  RunInfo info;
  Metrics metrics;
  std::vector<RequestRecord> records;
  double cpu_s = 0;  // of the load generator itself
  bool interrupted = false;
};

// One run, some lines ending in a newline.
std::string FormatRun(const RunResult& result);
// Several, a line each.
std::string FormatSweep(const std::vector<RunResult>& results);

// `detailed` adds a value per request: input_lens, output_lens, ttfts and itls (seconds), errors.
nlohmann::ordered_json RunToJson(const RunResult& result, bool detailed);
// The JSON's fields as columns, a row a run.
std::string RunsToCsv(const std::vector<RunResult>& results);
// A row a request of every run; the first column is the run's number.
std::string RequestsToCsv(const std::vector<RunResult>& results);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_REPORT_H_
