#include "prefill_worker/vllm_leg.h"

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/mutex.h"
#include "kvtransfer/ticket.h"

namespace baton::prefill_worker {
namespace {

// Collects what the service says until the prompt is computed; the call is over then, the service's may go on.
class Answer final : public rpc::EventStream<v1::PrefillEvent> {
 public:
  Answer(std::shared_ptr<vllm::GenerateCall> call, v1::EngineHandoff handoff, std::function<void()> abandon)
      : call_(std::move(call)), handoff_(std::move(handoff)), abandon_(std::move(abandon)) {}

  bool Push(v1::PrefillEvent event) override {
    if (event.has_ticket()) *handoff_.mutable_ticket() = std::move(*event.mutable_ticket());
    if (event.has_token()) tokens_.push_back(std::move(*event.mutable_token()));
    if (event.has_prefilled()) Complete(event.prefilled());
    return true;
  }
  void Finish(absl::Status status) override {
    std::function<void()> drop;  // it holds the service's call
    {
      MutexLock lock(&mu_);
      drop = std::exchange(abandon_, nullptr);
    }
    call_->Finish(std::move(status));  // nothing, after Complete
  }
  bool cancelled() const override {
    MutexLock lock(&mu_);
    return cancelled_;
  }
  void Abandon() {
    std::function<void()> abandon;
    {
      MutexLock lock(&mu_);
      cancelled_ = true;
      abandon = std::exchange(abandon_, nullptr);
    }
    if (abandon) abandon();
  }

 private:
  void Complete(const v1::Prefilled& prefilled) {
    call_->set_cached_tokens(prefilled.cached_tokens());
    for (v1::SampledToken& token : tokens_) {
      const bool hand_over = handoff_.has_ticket();
      if (hand_over) *handoff_.mutable_first_tokens()->add_tokens() = token;
      if (hand_over) token.clear_finish_reason();  // whether it ends the choice is decode's to say
      call_->OnToken(token);
    }
    if (handoff_.has_ticket()) {
      handoff_.set_cached_tokens(prefilled.cached_tokens());
      call_->CompleteWith(vllm::HandoffJson(handoff_));
    }
    call_->Finish(absl::OkStatus());
  }

  // One thread at a time: the engine's, then whoever ends the service's call.
  const std::shared_ptr<vllm::GenerateCall> call_;
  v1::EngineHandoff handoff_;
  std::vector<v1::SampledToken> tokens_;
  mutable Mutex mu_;
  std::function<void()> abandon_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

void RunVllmLeg(PrefillService* service, const ModelLimits& limits, vllm::EngineRequest request, absl::Time deadline,
                const std::optional<tracing::SpanContext>& trace, std::shared_ptr<vllm::GenerateCall> call) {
  // The gateway asks for one token where the request may want many: what ends the choice must not be that.
  if (request.hand_over) request.sampling.clear_max_tokens();
  v1::PrefillRequest prefill;
  *prefill.mutable_sampling() =
      ResolveDefaults(request.sampling, request.prompt_token_ids.size(), RandomU64() >> 1, limits);
  if (!request.hand_over && prefill.sampling().max_tokens() > 1) {
    return call->Finish(absl::FailedPreconditionError(
        "a prefill worker computes one token; send max_tokens 1, or the request to a decode worker"));
  }
  prefill.set_hand_over(request.hand_over && prefill.sampling().max_tokens() > 1 && prefill.sampling().n() == 1);
  prefill.set_request_id(request.request_id);
  prefill.set_epoch(1);
  v1::EngineHandoff handoff;
  handoff.set_seed(prefill.sampling().seed());
  handoff.set_prompt_checksum(kvtransfer::BlockChecksum(std::as_bytes(
      std::span(request.prompt_token_ids.data(), static_cast<size_t>(request.prompt_token_ids.size())))));
  prefill.mutable_prompt_token_ids()->Swap(&request.prompt_token_ids);
  service->Serve(
      prefill, deadline,
      [&](std::function<void()> abandon) {
        auto answer = std::make_shared<Answer>(call, std::move(handoff), std::move(abandon));
        call->OnCancel([answer] { answer->Abandon(); });
        return answer;
      },
      trace);
}

}  // namespace baton::prefill_worker
