#include "common/tracing/tracer.h"

#include <algorithm>
#include <utility>

#include "common/ids.h"
#include "common/tracing/otlp_exporter.h"

namespace baton::tracing {
namespace {

uint64_t NewId() {
  const uint64_t id = RandomU64();
  return id == 0 ? 1 : id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::FromConfig(const v1::Config& config, const Service& service,
                                                           Metrics* metrics) {
  if (!config.has_otlp_endpoint() || config.otlp_endpoint().empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<OtlpExporter>> exporter =
      OtlpExporter::Start({.endpoint = config.otlp_endpoint(), .ca = config.otlp_tls_ca(), .service = service}, metrics);
  if (!exporter.ok()) return exporter.status();
  return std::make_unique<Tracer>(*std::move(exporter), config.trace_permille());
}

SpanContext Tracer::Begin(const std::optional<SpanContext>& parent) const {
  SpanContext context;
  if (parent.has_value()) {
    context = *parent;
  } else {
    context.trace_high = NewId();
    context.trace_low = NewId();
    context.sampled = context.trace_low % 1000 < permille_;
  }
  context.span_id = NewId();
  return context;
}

Span Tracer::Child(const SpanContext& parent, const char* name, absl::Time start, absl::Time end) {
  Span span;
  span.name = name;
  span.context = parent;
  span.context.span_id = NewId();
  span.parent_id = parent.span_id;
  span.start = start;
  span.end = std::max(start, end);
  return span;
}

void Tracer::End(Span span) const {
  if (span.context.sampled) sink_->Add(std::move(span));
}

}  // namespace baton::tracing
