// Sends spans to a collector: OTLP over HTTP with protobuf bodies
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp), POST /v1/traces.
#ifndef BATON_COMMON_TRACING_OTLP_EXPORTER_H_
#define BATON_COMMON_TRACING_OTLP_EXPORTER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/tracing/http_poster.h"
#include "common/tracing/tracer.h"

namespace baton::tracing {

struct OtlpOptions {
  std::string endpoint;  // http://host[:port][/path] or https://...
  std::string ca;        // PEM file, for https; empty: the authorities that the system trusts
  Service service;
  size_t max_queue = 4096;  // spans; more are dropped
  size_t max_batch = 512;   // spans of one POST
  absl::Duration period = absl::Milliseconds(500);  // between POSTs while spans come slowly
  absl::Duration timeout = absl::Seconds(5);        // of one POST
};

// One thread sends; a batch that the collector does not take is lost and counted (baton_trace_spans_total{outcome}), and
// nobody waits for any of it. The destructor sends what is left, for a second at most.
//
// Thread contract: thread-safe.
class OtlpExporter final : public SpanSink {
 public:
  // INVALID_ARGUMENT: the endpoint is not such a URL. NOT_FOUND: `ca` holds no authority. Connects to nobody yet. `metrics` outlives the exporter.
  static absl::StatusOr<std::unique_ptr<OtlpExporter>> Start(OtlpOptions options, Metrics* metrics);
  ~OtlpExporter() override;

  void Add(Span span) override;

 private:
  OtlpExporter(OtlpOptions options, std::unique_ptr<HttpPoster> poster, Metrics* metrics);
  void Run();
  std::vector<Span> NextBatch();
  void Send(const std::vector<Span>& batch);
  std::string Body(const std::vector<Span>& batch) const;

  const OtlpOptions options_;
  const std::unique_ptr<HttpPoster> poster_;
  prometheus::Counter& sent_;
  prometheus::Counter& dropped_;  // the queue was full
  prometheus::Counter& failed_;   // the collector did not take them
  bool failing_ = false;          // thread_ only: so that one line is logged, not thousands
  Mutex mu_;
  CondVar cv_;
  std::deque<Span> queue_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_OTLP_EXPORTER_H_
