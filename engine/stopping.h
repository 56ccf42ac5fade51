// When a choice ends. Stop strings are not here: they are matched where text is made, which cancels.
//
// Thread contract: pure functions.
#ifndef BATON_ENGINE_STOPPING_H_
#define BATON_ENGINE_STOPPING_H_

#include <cstdint>
#include <span>

#include "engine/request.h"

namespace baton::engine {

// Whether `token_id` ends a choice by itself: an end-of-sequence id (unless ignored) or one of the request's stop ids.
bool IsStopToken(const SamplingParams& params, std::span<const int32_t> eos_token_ids, int32_t token_id);

// The state of a choice after its newest token. num_outputs and num_tokens (prompt and outputs) count that token;
// max_context is what a sequence may have in all. A stop token wins over the length that it also reaches.
FinishReason CheckStop(const SamplingParams& params, std::span<const int32_t> eos_token_ids, int32_t token_id,
                       int num_outputs, int64_t num_tokens, int64_t max_context);

}  // namespace baton::engine

#endif  // BATON_ENGINE_STOPPING_H_
