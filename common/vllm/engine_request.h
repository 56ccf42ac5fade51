// Requests of vllm.grpc.engine.VllmEngine as ours, and what travels in their kv_transfer_params_json.
//
// Thread contract: plain functions.
#ifndef BATON_COMMON_VLLM_ENGINE_REQUEST_H_
#define BATON_COMMON_VLLM_ENGINE_REQUEST_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/validate_request.h"
#include "proto/compat/vllm_engine.pb.h"
#include "proto/engine_handoff.pb.h"
#include "proto/inference.pb.h"

namespace baton::vllm {

namespace pb = ::vllm::grpc::engine;

struct EngineRequest {
  std::string request_id;
  google::protobuf::RepeatedField<int32_t> prompt_token_ids;
  v1::SamplingParams sampling;  // valid; without defaults, and without stop strings, which are the gateway's
  bool stream = false;
  bool hand_over = false;                    // a prefill leg: its KV goes to a decode worker
  std::optional<v1::EngineHandoff> handoff;  // a decode leg: where that KV is
};

// INVALID_ARGUMENT, naming the field: text (only token ids are understood), media, grammars, prompt_logprobs, a
// kv_transfer_params_json that is not an object or says "baton" and is not ours, and what every other door refuses.
absl::StatusOr<EngineRequest> ParseEngineRequest(const pb::GenerateRequest& request, const ModelLimits& limits);

// {"do_remote_prefill":true,...,"baton":"<base64>"}: what the decode leg's request brings back.
std::string HandoffJson(const v1::EngineHandoff& handoff);

}  // namespace baton::vllm

#endif  // BATON_COMMON_VLLM_ENGINE_REQUEST_H_
