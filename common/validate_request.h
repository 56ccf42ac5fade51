// The one place where a client's request is judged. Every front door (gRPC, HTTP, the one-process path) builds a
// GenerateRequest and calls this; nothing behind it checks ranges again.
//
// Thread contract: plain functions.
#ifndef BATON_COMMON_VALIDATE_REQUEST_H_
#define BATON_COMMON_VALIDATE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"

namespace baton {

inline constexpr int kMaxChoices = 16;
inline constexpr int kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr int kMaxStopTokenIds = 128;
inline constexpr int kMaxLogitBias = 1024;
inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxMessages = 4096;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr uint32_t kMaxTokensPerMessage = 16;
inline constexpr int kMaxToolCalls = 128;  // of one message
inline constexpr size_t kMaxToolsBytes = 256 << 10;
inline constexpr size_t kMaxTemplateArgumentsBytes = 16 << 10;

struct ModelLimits {
  int vocab_size = 0;
  int max_context = 0;                   // positions of one sequence, prompt and output together
  std::vector<std::string> model_names;  // served; a request without a model means the only one
};

// Everything that can be said before tokenizing. INVALID_ARGUMENT "<field path>: ..." with the limit (see
// common/status.h, FieldOf); NOT_FOUND for a model that is not served, listing those that are.
absl::Status ValidateGenerateRequest(const v1::GenerateRequest& request, const ModelLimits& limits);

// Ranges of `sampling` alone, under the field path "sampling".
absl::Status ValidateSamplingParams(const v1::SamplingParams& sampling, const ModelLimits& limits);

// With the prompt's length known: it must leave room for one token, and for min_tokens. The messages name both numbers.
absl::Status ValidatePromptLength(int64_t num_prompt_tokens, const v1::SamplingParams& sampling,
                                  const ModelLimits& limits);

// Ids inside [0, vocab_size), under the field path `field`; names the first bad index and id.
absl::Status ValidateTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, absl::string_view field,
                              const ModelLimits& limits);

// `sampling`, which is valid, with every optional field set: defaults as in inference.proto, `seed` where none is
// given, max_tokens at most what is left of the context, top_k -1 as 0. Unset logprobs stays unset (it means none).
v1::SamplingParams ResolveDefaults(const v1::SamplingParams& sampling, int64_t num_prompt_tokens, uint64_t seed,
                                   const ModelLimits& limits);

// Byte offset of the first byte that is not UTF-8 (overlong forms, surrogates and values over U+10FFFF are not), or -1.
int64_t FirstInvalidUtf8(absl::string_view text);

}  // namespace baton

#endif  // BATON_COMMON_VALIDATE_REQUEST_H_
