// Decides which requests are traced, and takes the spans of those.
#ifndef BATON_COMMON_TRACING_TRACER_H_
#define BATON_COMMON_TRACING_TRACER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/metrics.h"
#include "common/tracing/span.h"
#include "proto/config.pb.h"

namespace baton::tracing {

// Thread-safe; nothing waits.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Add(Span span) = 0;
};

// Who the spans' process is.
struct Service {
  std::string name;      // "baton-router"
  std::string instance;  // tells two of a name apart
};

// Thread contract: thread-safe; nothing waits.
class Tracer {
 public:
  // By the settings otlp_* and trace_permille; null when no endpoint is set. Errors as OtlpExporter::Start.
  // `metrics` outlives the tracer.
  static absl::StatusOr<std::unique_ptr<Tracer>> FromConfig(const v1::Config& config, const Service& service,
                                                            Metrics* metrics);
  // Of a thousand traces that begin here, `permille` are sampled, by their ids.
  Tracer(std::unique_ptr<SpanSink> sink, uint32_t permille) : sink_(std::move(sink)), permille_(permille) {}

  // A new span's place: below `parent`, and sampled if that is; without one, in a new trace.
  SpanContext Begin(const std::optional<SpanContext>& parent) const;
  // A span below `parent` that is `name`d so; to be completed and given to End.
  static Span Child(const SpanContext& parent, const char* name, absl::Time start, absl::Time end);
  // Nothing, unless it is sampled.
  void End(Span span) const;

 private:
  const std::unique_ptr<SpanSink> sink_;
  const uint32_t permille_;
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_TRACER_H_
