#include "engine/stopping.h"

#include <algorithm>

namespace baton::engine {

bool IsStopToken(const SamplingParams& params, std::span<const int32_t> eos_token_ids, int32_t token_id) {
  if (!params.ignore_eos && std::ranges::find(eos_token_ids, token_id) != eos_token_ids.end()) return true;
  return std::ranges::find(params.stop_token_ids, token_id) != params.stop_token_ids.end();
}

FinishReason CheckStop(const SamplingParams& params, std::span<const int32_t> eos_token_ids, int32_t token_id,
                       int num_outputs, int64_t num_tokens, int64_t max_context) {
  if (IsStopToken(params, eos_token_ids, token_id)) return FinishReason::kStop;
  if (num_outputs >= params.max_tokens || num_tokens >= max_context) return FinishReason::kLength;
  return FinishReason::kNone;
}

}  // namespace baton::engine
