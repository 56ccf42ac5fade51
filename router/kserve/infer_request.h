// Tensors to requests of baton.v1, and text to tensors. Inputs are those of Triton's vLLM backend: `text_input`, and
// optionally `stream`, `sampling_parameters` (JSON, whose numbers may be strings), `exclude_input_in_output` and
// `max_tokens`.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_KSERVE_INFER_REQUEST_H_
#define BATON_ROUTER_KSERVE_INFER_REQUEST_H_

#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/compat/kserve.pb.h"
#include "proto/inference.pb.h"

namespace baton::router::kserve {

struct InferRequest {
  v1::GenerateRequest generate;
  bool stream = false;
  bool echo = false;          // the prompt before the answer
  bool empty_final = false;   // the last of several answers may have no output
  std::optional<v1::Priority> priority;  // the parameter's; else what sampling_parameters say
  absl::Duration timeout = absl::InfiniteDuration();
};

// `may_stream`: the call can carry several answers. INVALID_ARGUMENT names the tensor or the parameter.
absl::StatusOr<InferRequest> ParseInferRequest(const inference::ModelInferRequest& request, bool may_stream);

// An answer to `id`; `final`: the last one.
inference::ModelInferResponse MakeInferResponse(absl::string_view model, absl::string_view id, bool final);
// Adds `text_output`, an element for each choice.
void AddTexts(std::span<const std::string> texts, inference::ModelInferResponse* response);

}  // namespace baton::router::kserve

#endif  // BATON_ROUTER_KSERVE_INFER_REQUEST_H_
