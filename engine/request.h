// What the engine is asked and what it answers. Plain values; no text, no RPC types.
#ifndef BATON_ENGINE_REQUEST_H_
#define BATON_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvcache/block_pool.h"

namespace baton::constraint {
class TokenConstraint;
}

namespace baton::engine {

// Validated before it gets here (common/validate_request.h); the engine trusts the ranges.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int top_k = 0;             // 0: off
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int max_tokens = 0;        // > 0
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int logprobs = -1;         // -1: none; else number of alternatives
  int n = 1;
};

struct Request {
  std::string request_id;
  std::vector<int32_t> prompt_token_ids;  // not empty
  SamplingParams sampling;
  std::string tenant;                     // salts the prefix cache
  absl::Time deadline = absl::InfiniteFuture();
  // For Submit and SubmitDecode: output tokens that each choice has already, from index 0 on, because another worker went
  // so far. Empty, or one entry for each choice. Their KV is computed here. Submit samples token 0 once more; else the
  // first token sampled is the one after them.
  std::vector<std::vector<int32_t>> resume;
  std::vector<int> ended_choices;  // for Submit: these do not run beyond token 0
  std::shared_ptr<constraint::TokenConstraint> constraint;  // what the text must be; null: anything
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// What a reservation of KV room is for: the prefix cache may hold its first blocks.
struct PrefixQuery {
  std::string tenant;
  std::vector<int32_t> token_ids;
};

struct TopLogprob {
  int32_t token_id;
  float logprob;
};

struct SampledToken {
  int choice_index = 0;
  int token_index = 0;  // position in the choice's output
  int32_t token_id = 0;
  float logprob = 0;    // natural log, before temperature, penalties, bias and filters; set when logprobs >= 0
  std::vector<TopLogprob> top_logprobs;
  FinishReason finish_reason = FinishReason::kNone;  // not kNone on a choice's last token
};

struct RequestStats {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int num_chunks = 0;
  int num_steps = 0;        // decode steps this request took part in
  int num_preemptions = 0;
  absl::Duration queue;     // from submission until first scheduled
  absl::Duration prefill;   // from then until token 0 (zero for decode-only requests)
  absl::Duration logits;    // passes of its decode steps, shared with others, summed
  absl::Duration sample;    // sampling its tokens, summed
};

// Called on the engine's thread; must not block. After OnDone nothing more is called.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnToken(const SampledToken& token) = 0;
  // Only after SubmitPrefill, once, when the first chunk is scheduled: all of the prompt's blocks, now leased to the
  // caller too. They are written until OnComputed says so, block by block; the sequence is not preempted from here on.
  virtual void OnScheduled(kvcache::BlockLease /*blocks*/) {}
  // Only after OnScheduled: the KV of the first `num_tokens` positions is final. Grows; the last is the whole prompt.
  virtual void OnComputed(int /*num_tokens*/) {}
  // Only after Submit, once, behind token 0 of every choice.
  virtual void OnPrefilled(const RequestStats& /*so_far*/) {}
  // Whether OnHistory is of use; asked before what it takes is done.
  virtual bool WantsHistory() const { return true; }
  // Only after SubmitDecode with n = 1, before OnDone(OK), and only when decode filled a block: the full blocks of prompt
  // and output, now leased to the caller, and the tokens they hold.
  virtual void OnHistory(std::vector<int32_t> /*token_ids*/, kvcache::BlockLease /*blocks*/) {}
  // OK: every choice finished (SubmitPrefill: token 0 of every choice was sampled). Else CANCELLED, DEADLINE_EXCEEDED,
  // RESOURCE_EXHAUSTED (does not fit, or the queue is full), UNAVAILABLE (draining), INVALID_ARGUMENT (ids out of the
  // vocabulary, prompt over the context), ALREADY_EXISTS (the id is running), INTERNAL (logits not finite: kError),
  // what TokenConstraint says. The
  // request's blocks are back in the pool (or leased, after OnScheduled, or held until a copy that runs is done) before
  // this is called.
  virtual void OnDone(const absl::Status& status, const RequestStats& stats) = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_H_
