// What a load test measured, from its records. Names and meanings are those of `vllm bench serve`, so that its readers
// read ours.
//
//   TTFT  the first token's arrival minus the intended start
//   ITL   gaps between neighbouring tokens of one answer, all answers together
//   TPOT  per answer of two tokens or more: (last token - first token) / (tokens - 1)
//   E2EL  the answer's end minus the intended start
//
// Thread contract: pure functions.
#ifndef BATON_CLI_BENCH_METRICS_H_
#define BATON_CLI_BENCH_METRICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/bench/record.h"
#include "cli/bench/statistics.h"

namespace baton::bench {

// A request is good when none of the limits given is passed. TPOT of a one-token answer is 0.
struct Goodput {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};
// From words as "ttft:200" and "tpot:50". INVALID_ARGUMENT for an unknown name, a bad number, or a name given twice.
absl::StatusOr<Goodput> ParseGoodput(const std::vector<std::string>& words);

struct Metrics {
  double duration_s = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t abandoned = 0;
  std::map<std::string, uint64_t> errors;  // by code; failures only
  std::string first_error;                 // in words

  uint64_t total_input_tokens = 0, total_output_tokens = 0, total_cached_tokens = 0;
  double request_throughput = 0;      // completed requests a second
  double output_throughput = 0;       // tokens a second
  double total_token_throughput = 0;  // prompt tokens too
  std::optional<double> request_goodput;
  double max_output_tokens_per_s = 0;  // in the best whole second
  uint64_t max_concurrent_requests = 0;

  std::vector<double> percentiles;  // 99 always among them
  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution send_delay_ms;  // how late this program sent: near 0, or it is the bottleneck itself

  uint64_t kv_bytes = 0;
  Distribution transfer_ms;  // of requests whose KV moved
  uint64_t output_hash = 0;  // over all completed answers' token ids; does not depend on their order
};

// Of a distribution of `m`.
double P99(const Metrics& m, const Distribution& d);

// `duration_s` is the run's wall time. 99 is added to `percentiles` where it is not among them.
Metrics Measure(const std::vector<RequestRecord>& records, double duration_s, const Goodput& goodput,
                std::vector<double> percentiles);

// The run in equal slices of time, for plots.
struct Slice {
  double begin_s = 0, end_s = 0;
  double tokens_per_second = 0;
  double concurrency = 0;  // mean number of requests that were sent and not ended
  // Of tokens that arrived in this slice; nothing where none did.
  std::optional<double> ttft_median_ms, ttft_p99_ms, itl_median_ms, itl_p99_ms;
};
std::vector<Slice> SliceTime(const std::vector<RequestRecord>& records, double duration_s, int num_slices);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_METRICS_H_
