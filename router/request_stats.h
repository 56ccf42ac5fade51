// What one request cost: for metrics, logs and the client's Summary.
#ifndef BATON_ROUTER_REQUEST_STATS_H_
#define BATON_ROUTER_REQUEST_STATS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/inference.pb.h"

namespace baton::router {

// Of choice 0, for a picture of the request; more are counted but have no moment of their own.
inline constexpr size_t kMaxTokenMoments = 4096;

struct RequestStats {
  // Moments of the last attempt, since the request's arrival. Infinite: it did not get there.
  absl::Duration placed_at = absl::InfiniteDuration();     // workers were chosen
  absl::Duration reserved_at = absl::InfiniteDuration();   // the decode worker had room
  absl::Duration prefilled_at = absl::InfiniteDuration();  // prefill's last word
  absl::Duration fetched_at = absl::InfiniteDuration();    // the KV was on the decode worker
  absl::Duration last_token_at = absl::InfiniteDuration();  // of any choice
  std::vector<float> token_ms;                             // each token of choice 0; kMaxTokenMoments at most
  absl::Duration tokenize, reserve, queue, prefill, transfer, decode_queue;
  absl::Duration handover;      // from the end of prefill until decode had the KV
  absl::Duration second_token;  // after the first, of choice 0
  absl::Duration ttft = absl::InfiniteDuration();  // infinite: no token came
  absl::Duration total;
  absl::Duration logits, sample;  // by the workers: decode's passes, and sampling; known at the end only
  uint32_t num_steps = 0;         // of decode
  std::vector<float> itl_ms;  // between tokens of one choice
  absl::Duration stop;        // spent in stop matching and detokenizing
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint32_t attempts = 1;
  uint32_t retries_after_first_token = 0;
  uint32_t num_preemptions = 0;
  uint32_t num_chunks = 0;  // of the prompt
  v1::KvSummary kv;
  const char* mode = "none";  // "remote" or "local": who computed the prompt, in the last attempt
  std::string prefill_worker, decode_worker;
  std::vector<v1::FinishReason> finish_reasons;  // of finished choices
};

// The last message of a stream. Percentiles are nearest-rank.
v1::Summary MakeSummary(const RequestStats& stats, uint64_t seed);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_STATS_H_
