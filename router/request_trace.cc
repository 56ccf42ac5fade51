#include "router/request_trace.h"

#include <algorithm>
#include <utility>

#include "common/metrics.h"

namespace baton::router {

using tracing::Span;
using tracing::Tracer;

void TraceRequest(const Tracer& tracer, const TracedRequest& request, const absl::Status& status,
                  const RequestStats& stats) {
  const absl::Time end = request.arrived + stats.total;
  Span span;
  span.name = "request";
  span.kind = tracing::SpanKind::kServer;
  span.context = request.place;
  span.parent_id = request.parent_id;
  span.start = request.arrived;
  span.end = end;
  span.code = status.code();
  span.Set("baton.request_id", request.key);
  span.Set("gen_ai.request.model", request.model);
  span.Set("gen_ai.request.max_tokens", int64_t{request.max_tokens});
  span.Set("gen_ai.usage.input_tokens", int64_t{stats.prompt_tokens});
  span.Set("gen_ai.usage.output_tokens", int64_t{stats.completion_tokens});
  span.Set("baton.cached_tokens", int64_t{stats.cached_tokens});
  span.Set("baton.attempts", int64_t{stats.attempts});
  span.Set("baton.mode", std::string(stats.mode));
  span.Set("baton.prefill_worker", stats.prefill_worker);
  span.Set("baton.decode_worker", stats.decode_worker);
  if (stats.placed_at != absl::InfiniteDuration()) span.SetMs("baton.placed_ms", stats.placed_at);
  if (stats.reserved_at != absl::InfiniteDuration()) span.SetMs("baton.reserved_ms", stats.reserved_at);
  if (stats.ttft != absl::InfiniteDuration()) span.SetMs("baton.first_token_ms", stats.ttft);
  tracer.End(std::move(span));
  if (stats.prompt_tokens == 0) return;  // refused at the door

  tracer.End(Tracer::Child(request.place, kStations[0], request.arrived, request.arrived + stats.tokenize));
  if (stats.completion_tokens == 0) return;
  const absl::Time last = stats.last_token_at == absl::InfiniteDuration() ? end : request.arrived + stats.last_token_at;
  Span emit = Tracer::Child(request.place, kStations[4], request.arrived + stats.ttft, last);
  emit.Set("baton.tokens", int64_t{stats.completion_tokens});
  emit.SetMs("baton.busy_ms", request.emit);
  tracer.End(std::move(emit));
  Span stop = Tracer::Child(request.place, kStations[5], last, end);
  stop.SetMs("baton.busy_ms", stats.stop);
  tracer.End(std::move(stop));
}

}  // namespace baton::router
