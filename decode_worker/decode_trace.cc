#include "decode_worker/decode_trace.h"

#include <algorithm>
#include <utility>

#include "common/metrics.h"

namespace baton::decode_worker {

using tracing::Span;
using tracing::Tracer;

DecodeTrace::DecodeTrace(const Tracer* tracer, const std::optional<tracing::SpanContext>& parent, absl::Time begun) {
  if (tracer == nullptr) return;
  call_.context = tracer->Begin(parent);
  if (!call_.context.sampled) return;
  tracer_ = tracer;
  call_.name = "decode";
  call_.kind = tracing::SpanKind::kServer;
  call_.parent_id = parent.has_value() ? parent->span_id : 0;
  call_.start = begun;
}

void DecodeTrace::OnFetched(absl::Time now, absl::string_view peer, const kvtransfer::FetchStats& stats) {
  if (tracer_ == nullptr) return;
  transfer_ = Tracer::Child(call_.context, "transfer", now - stats.duration, now);
  transfer_->Set("baton.prefill_worker", std::string(peer));
  transfer_->Set("baton.bytes", static_cast<int64_t>(stats.bytes));
  transfer_->Set("baton.blocks", int64_t{stats.blocks});
  transfer_->Set("baton.transport", stats.transport);
  transfer_->SetMs("baton.waiting_ms", stats.waiting);
}

void DecodeTrace::OnStart(absl::Time now) { started_ = now; }

void DecodeTrace::OnPrefilled(const engine::RequestStats&) { local_ = true; }

void DecodeTrace::OnToken(absl::Time now) {
  first_token_ = std::min(first_token_, now);
  last_token_ = now;
  ++tokens_;
}

void DecodeTrace::OnDone(const engine::RequestStats& stats) {
  if (tracer_ != nullptr) stats_ = stats;
}

void DecodeTrace::EndSteps() {
  const absl::Time scheduled = started_ + stats_.queue;
  if (local_) {
    Span prefill = Tracer::Child(call_.context, kStations[1], scheduled, scheduled + stats_.prefill);
    prefill.Set("gen_ai.usage.input_tokens", int64_t{stats_.prompt_tokens});
    prefill.Set("baton.cached_tokens", int64_t{stats_.cached_tokens});
    tracer_->End(std::move(prefill));
  }
  const absl::Time first_step = std::min(local_ ? scheduled + stats_.prefill : scheduled, first_token_);
  Span logits = Tracer::Child(call_.context, kStations[2], first_step, last_token_);
  logits.SetMs("baton.busy_ms", stats_.logits);
  logits.Set("baton.steps", int64_t{stats_.num_steps});
  tracer_->End(std::move(logits));
  const absl::Duration one = stats_.sample / std::max<int64_t>(tokens_, 1);
  Span sample = Tracer::Child(call_.context, kStations[3], std::max(first_step, first_token_ - one), last_token_);
  sample.SetMs("baton.busy_ms", stats_.sample);
  sample.Set("baton.tokens", tokens_);
  tracer_->End(std::move(sample));
}

void DecodeTrace::End(const std::string& request_id, uint32_t epoch, const absl::Status& status, absl::Time now) {
  if (tracer_ == nullptr) return;
  call_.end = now;
  call_.code = status.code();
  call_.Set("baton.request_id", request_id);
  call_.Set("baton.attempt", int64_t{epoch});
  call_.SetMs("baton.queue_ms", stats_.queue);
  call_.Set("baton.preemptions", int64_t{stats_.num_preemptions});
  if (transfer_.has_value()) tracer_->End(*std::move(transfer_));
  if (tokens_ > 0) EndSteps();
  tracer_->End(std::move(call_));
  tracer_ = nullptr;
}

}  // namespace baton::decode_worker
