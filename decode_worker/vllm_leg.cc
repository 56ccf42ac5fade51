#include "decode_worker/vllm_leg.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "common/ids.h"
#include "common/logging.h"
#include "common/mutex.h"
#include "common/status.h"
#include "kvtransfer/ticket.h"

namespace baton::decode_worker {
namespace {

// One request on its way; and the stream of the service's call that runs for it, first over fetched KV, and, where that
// fails before a token is out, once more over a prompt computed here.
class Leg final : public std::enable_shared_from_this<Leg> {
 public:
  Leg(DecodeService* service, const ModelLimits& limits, Metrics* metrics, vllm::EngineRequest request,
      absl::Time deadline, std::optional<tracing::SpanContext> trace, std::shared_ptr<vllm::GenerateCall> call)
      : service_(service),
        metrics_(metrics),
        handoff_(std::move(request.handoff)),
        deadline_(deadline),
        trace_(std::move(trace)),
        call_(std::move(call)) {
    decode_.set_request_id(request.request_id);
    decode_.mutable_prompt_token_ids()->Swap(&request.prompt_token_ids);
    const uint64_t seed = handoff_.has_value() ? handoff_->seed() : RandomU64() >> 1;
    *decode_.mutable_sampling() = ResolveDefaults(request.sampling, decode_.prompt_token_ids_size(), seed, limits);
    max_context_ = limits.max_context;
  }

  void Run() {
    if (handoff_.has_value() && CanUse(*handoff_)) return RunOverFetchedKv();
    RunOverOwnPrompt(handoff_.has_value() ? "recomputed" : "local");
  }
  absl::Status Check() const {
    if (!handoff_.has_value() || handoff_->prompt_checksum() == Checksum()) return absl::OkStatus();
    return InvalidField("kv_transfer_params_json", "is of another prompt");
  }

 private:
  class Events;

  uint64_t Checksum() const {
    const auto& ids = decode_.prompt_token_ids();
    return kvtransfer::BlockChecksum(std::as_bytes(std::span(ids.data(), static_cast<size_t>(ids.size()))));
  }
  // Whether its token 0 is this request's. Prefill drew it without knowing max_tokens.
  bool CanUse(const v1::EngineHandoff& handoff) const {
    const v1::SamplingParams& sampling = decode_.sampling();
    if (sampling.n() != 1 || handoff.first_tokens().tokens_size() != 1 || sampling.seed() != handoff.seed()) return false;
    const v1::SampledToken& first = handoff.first_tokens().tokens(0);
    if (first.choice_index() != 0 || first.token_index() != 0) return false;
    if (first.finish_reason() != v1::FINISH_REASON_UNSPECIFIED && sampling.min_tokens() > 0) return false;
    return decode_.prompt_token_ids_size() + 2 <= max_context_;
  }
  bool one_token() const { return decode_.sampling().max_tokens() == 1; }

  void Count(const char* prompt) {
    metrics_
        ->Counter("baton_vllm_requests_total",
                  "Requests of other systems' gateways, by where the prompt was computed: fetched from a prefill worker, "
                  "local, or recomputed because the fetch was of no use",
                  {{"prompt", prompt}})
        .Increment();
  }
  void RunOverFetchedKv();
  void RunOverOwnPrompt(const char* why);
  void Serve(const v1::DecodeRequest& request, bool fetches, const v1::Ticket* ticket);
  // The engine's and the transport's threads, one after another.
  void OnFetched(const v1::Fetched& fetched);
  void OnEnd(bool fetches, absl::Status status);

  DecodeService* const service_;
  Metrics* const metrics_;
  const std::optional<v1::EngineHandoff> handoff_;
  const absl::Time deadline_;
  const std::optional<tracing::SpanContext> trace_;
  const std::shared_ptr<vllm::GenerateCall> call_;
  v1::DecodeRequest decode_;
  int max_context_ = 0;
  bool mismatch_ = false;  // the KV came with another token 0 than the handoff
};

class Leg::Events final : public rpc::EventStream<v1::DecodeEvent> {
 public:
  Events(std::shared_ptr<Leg> leg, bool fetches, std::function<void()> abandon)
      : leg_(std::move(leg)), fetches_(fetches), abandon_(std::move(abandon)) {}

  bool Push(v1::DecodeEvent event) override {
    if (leg_->mismatch_) {
      if (event.has_token()) Abandon();
      return false;
    }
    if (event.has_fetched()) leg_->OnFetched(event.fetched());
    if (event.has_prefilled()) leg_->call_->set_cached_tokens(event.prefilled().cached_tokens());
    if (event.has_token()) leg_->call_->OnToken(event.token());
    return true;
  }
  void Finish(absl::Status status) override {
    std::function<void()> drop;  // it holds the service's call
    {
      MutexLock lock(&mu_);
      drop = std::exchange(abandon_, nullptr);
    }
    leg_->OnEnd(fetches_, std::move(status));
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
  const std::shared_ptr<Leg> leg_;
  const bool fetches_;
  mutable Mutex mu_;
  std::function<void()> abandon_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void Leg::Serve(const v1::DecodeRequest& request, bool fetches, const v1::Ticket* ticket) {
  service_->Serve(
      request, deadline_,
      [&](std::function<void()> abandon) {
        auto events = std::make_shared<Events>(shared_from_this(), fetches, std::move(abandon));
        call_->OnCancel([events] { events->Abandon(); });
        return events;
      },
      trace_, ticket);
}

void Leg::RunOverFetchedKv() {
  v1::DecodeRequest request = decode_;
  request.set_epoch(handoff_->ticket().epoch());
  // Fetched all the same, so that the prefill worker is rid of it; but no step is to run.
  if (one_token()) request.mutable_sampling()->set_max_tokens(2);
  request.set_wait_for_go(one_token());
  Serve(request, /*fetches=*/true, &handoff_->ticket());
  if (!one_token()) return;
  v1::UpdateDecodeRequest go;
  go.set_request_id(request.request_id());
  go.set_epoch(request.epoch());
  go.set_go(true);
  go.add_ended_choices(0);
  service_->Update(go).IgnoreError();  // the call is over, and has said why
}

void Leg::RunOverOwnPrompt(const char* why) {
  Count(why);
  v1::DecodeRequest request = decode_;
  request.set_epoch(handoff_.has_value() ? handoff_->ticket().epoch() + 1 : 1);
  request.set_local_prefill(true);
  Serve(request, /*fetches=*/false, nullptr);
}

void Leg::OnFetched(const v1::Fetched& fetched) {
  v1::SampledToken first = handoff_->first_tokens().tokens(0);
  const bool ended = first.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  mismatch_ = fetched.finished() != ended ||
              (!ended && (fetched.first_token_ids_size() != 1 || fetched.first_token_ids(0) != first.token_id()));
  if (mismatch_) return;
  Count("fetched");
  call_->set_cached_tokens(handoff_->cached_tokens());
  if (!ended && one_token()) first.set_finish_reason(v1::FINISH_REASON_LENGTH);
  call_->OnToken(first);
}

void Leg::OnEnd(bool fetches, absl::Status status) {
  if (mismatch_) status = absl::DataLossError("the KV came with another first token than the handoff");
  const absl::StatusCode code = status.code();
  // The KV is gone, or never was for this worker. Whatever says that the request itself is wrong goes to the caller.
  const bool of_kv = code == absl::StatusCode::kAborted || code == absl::StatusCode::kDataLoss ||
                     code == absl::StatusCode::kNotFound || code == absl::StatusCode::kFailedPrecondition;
  if (!fetches || !of_kv || call_->has_tokens()) return call_->Finish(std::move(status));
  LogWarn("KV of another system's gateway cannot be had; its prompt is computed here",
          {{"request", decode_.request_id()}, {"code", RuleFor(code).name}, {"why", status.message()}});
  mismatch_ = false;
  RunOverOwnPrompt("recomputed");
}

}  // namespace

void RunVllmLeg(DecodeService* service, const ModelLimits& limits, Metrics* metrics, vllm::EngineRequest request,
                absl::Time deadline, const std::optional<tracing::SpanContext>& trace,
                std::shared_ptr<vllm::GenerateCall> call) {
  const auto leg = std::make_shared<Leg>(service, limits, metrics, std::move(request), deadline, trace, call);
  if (absl::Status s = leg->Check(); !s.ok()) return call->Finish(std::move(s));
  leg->Run();
}

}  // namespace baton::decode_worker
