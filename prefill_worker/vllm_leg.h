// A prefill worker's part for somebody else's gateway (common/vllm): token 0, and a ticket for the KV in the answer.
#ifndef BATON_PREFILL_WORKER_VLLM_LEG_H_
#define BATON_PREFILL_WORKER_VLLM_LEG_H_

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/tracing/span.h"
#include "common/validate_request.h"
#include "common/vllm/engine_request.h"
#include "common/vllm/generate_call.h"
#include "prefill_worker/service.h"

namespace baton::prefill_worker {

// Runs `request`, which is valid, on `service`, which outlives the call. With hand_over the call is answered when the prompt
// is computed, and the ticket lives on until it was fetched or its lease is over. Without it a request for more than one
// token is FAILED_PRECONDITION: that is a decode worker's. Returns at once.
void RunVllmLeg(PrefillService* service, const ModelLimits& limits, vllm::EngineRequest request, absl::Time deadline,
                const std::optional<tracing::SpanContext>& trace, std::shared_ptr<vllm::GenerateCall> call);

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_VLLM_LEG_H_
