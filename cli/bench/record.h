// What is remembered of one request of a load test. Times are seconds since the run's start.
#ifndef BATON_CLI_BENCH_RECORD_H_
#define BATON_CLI_BENCH_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::bench {

struct RequestRecord {
  uint64_t index = 0;
  // When the schedule wanted it sent. Latencies count from here, so that a client or a server that falls behind shows
  // ("coordinated omission"). In a closed loop: when it was sent.
  double intended_s = 0;
  double sent_s = 0;
  std::vector<double> token_s;  // arrival of each token
  double end_s = 0;             // the answer was complete, or it failed
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint64_t kv_bytes = 0;
  double transfer_ms = 0;
  uint64_t output_hash = 0;  // of its token ids and its index
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string error;
  bool abandoned = false;  // cancelled here, when the run was interrupted: counts neither as done nor as failed

  bool ok() const { return code == absl::StatusCode::kOk && !abandoned; }
  // Of a request that is ok, in milliseconds. TPOT needs two tokens.
  double ttft_ms() const { return token_s.empty() ? 0 : (token_s.front() - intended_s) * 1e3; }
  double e2el_ms() const { return (end_s - intended_s) * 1e3; }
  bool has_tpot() const { return token_s.size() > 1; }
  double tpot_ms() const {
    return has_tpot() ? (token_s.back() - token_s.front()) * 1e3 / static_cast<double>(token_s.size() - 1) : 0;
  }
};

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_RECORD_H_
