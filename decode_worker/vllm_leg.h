// A decode worker's part for somebody else's gateway (common/vllm): all tokens from index 0 on, over the KV that a prefill
// worker's ticket names, or over a prompt computed here.
#ifndef BATON_DECODE_WORKER_VLLM_LEG_H_
#define BATON_DECODE_WORKER_VLLM_LEG_H_

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/metrics.h"
#include "common/tracing/span.h"
#include "common/validate_request.h"
#include "common/vllm/engine_request.h"
#include "common/vllm/generate_call.h"
#include "decode_worker/service.h"

namespace baton::decode_worker {

// Runs `request`, which is valid, on `service`; service and metrics outlive the call. Without a handoff, with one that is for
// another number of choices, or when its KV cannot be had, the prompt is computed here: the tokens are the same. A handoff
// of another prompt or request is an error. Returns at once. Counts baton_vllm_requests_total{prompt}.
void RunVllmLeg(DecodeService* service, const ModelLimits& limits, Metrics* metrics, vllm::EngineRequest request,
                absl::Time deadline, const std::optional<tracing::SpanContext>& trace,
                std::shared_ptr<vllm::GenerateCall> call);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_VLLM_LEG_H_
