#include "common/tracing/otlp_exporter.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/logging.h"
#include "common/status.h"
#include "common/version.h"
#include "proto/compat/otlp.pb.h"

namespace baton::tracing {
namespace {

namespace otlp = ::baton::compat::otlp;

constexpr absl::Duration kFarewell = absl::Seconds(1);

std::string Bytes(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (56 - 8 * i));
  return bytes;
}

otlp::AnyValue ToOtlp(const Span::Value& value) {
  otlp::AnyValue out;
  if (const auto* number = std::get_if<int64_t>(&value)) out.set_int_value(*number);
  if (const auto* number = std::get_if<double>(&value)) out.set_double_value(*number);
  if (const auto* text = std::get_if<std::string>(&value)) out.set_string_value(*text);
  return out;
}

void AddAttribute(google::protobuf::RepeatedPtrField<otlp::KeyValue>* to, const char* key, const Span::Value& value) {
  otlp::KeyValue* attribute = to->Add();
  attribute->set_key(key);
  *attribute->mutable_value() = ToOtlp(value);
}

void ToOtlp(const Span& span, otlp::Span* out) {
  out->set_trace_id(Bytes(span.context.trace_high) + Bytes(span.context.trace_low));
  out->set_span_id(Bytes(span.context.span_id));
  out->set_trace_state(span.context.tracestate);
  if (span.parent_id != 0) out->set_parent_span_id(Bytes(span.parent_id));
  out->set_name(span.name);
  out->set_kind(span.kind == SpanKind::kServer ? otlp::Span::SPAN_KIND_SERVER : otlp::Span::SPAN_KIND_INTERNAL);
  out->set_start_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(span.start)));
  out->set_end_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(span.end)));
  out->set_flags(1);  // sampled, or it would not be here
  for (const auto& [key, value] : span.attributes) AddAttribute(out->mutable_attributes(), key, value);
  if (span.code == absl::StatusCode::kOk) return;
  AddAttribute(out->mutable_attributes(), "error.type", std::string(RuleFor(span.code).name));
  out->mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OtlpExporter>> OtlpExporter::Start(OtlpOptions options, Metrics* metrics) {
  absl::StatusOr<std::unique_ptr<HttpPoster>> poster = HttpPoster::Create(options.endpoint, "/v1/traces", options.ca);
  if (!poster.ok()) return poster.status();
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(std::move(options), *std::move(poster), metrics));
}

OtlpExporter::OtlpExporter(OtlpOptions options, std::unique_ptr<HttpPoster> poster, Metrics* metrics)
    : options_(std::move(options)),
      poster_(std::move(poster)),
      sent_(metrics->Counter("baton_trace_spans_total", "Spans of traces, by what became of them", {{"outcome", "sent"}})),
      dropped_(metrics->Counter("baton_trace_spans_total", "", {{"outcome", "dropped"}})),
      failed_(metrics->Counter("baton_trace_spans_total", "", {{"outcome", "failed"}})) {
  thread_ = std::thread([this] { Run(); });
}

OtlpExporter::~OtlpExporter() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    cv_.SignalAll();
  }
  // What is under way or left gets a moment; a collector that does not answer gets no more.
  poster_->StopAt(absl::Now() + kFarewell);
  thread_.join();
}

void OtlpExporter::Add(Span span) {
  MutexLock lock(&mu_);
  if (stop_ || queue_.size() >= options_.max_queue) return dropped_.Increment();
  queue_.push_back(std::move(span));
  if (queue_.size() >= options_.max_batch) cv_.SignalAll();
}

std::vector<Span> OtlpExporter::NextBatch() {
  std::vector<Span> batch;
  MutexLock lock(&mu_);
  const absl::Time until = absl::Now() + options_.period;
  while (!stop_ && queue_.size() < options_.max_batch && absl::Now() < until) {
    cv_.WaitWithTimeout(&mu_, until - absl::Now());
  }
  const size_t size = std::min(queue_.size(), options_.max_batch);
  std::move(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(size), std::back_inserter(batch));
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(size));
  return batch;
}

void OtlpExporter::Run() {
  while (true) {
    const std::vector<Span> batch = NextBatch();
    if (!batch.empty()) {
      Send(batch);
      continue;
    }
    MutexLock lock(&mu_);
    if (stop_ && queue_.empty()) return;
  }
}

void OtlpExporter::Send(const std::vector<Span>& batch) {
  const absl::StatusOr<std::string> answer = poster_->Post(Body(batch), "application/x-protobuf", options_.timeout);
  absl::Status status = answer.status();
  int64_t rejected = 0;
  otlp::ExportTraceServiceResponse response;
  if (answer.ok() && response.ParseFromString(*answer)) rejected = response.partial_success().rejected_spans();
  const auto size = static_cast<double>(batch.size());
  const double lost = status.ok() ? std::clamp(static_cast<double>(rejected), 0.0, size) : size;
  sent_.Increment(size - lost);
  failed_.Increment(lost);
  if (status.ok() == !failing_) return;
  failing_ = !status.ok();
  if (failing_) {
    LogWarn("traces are lost until the collector answers",
            {{"endpoint", options_.endpoint}, {"error", status.message()}});
  } else {
    LogInfo("the collector takes traces again", {{"endpoint", options_.endpoint}});
  }
}

std::string OtlpExporter::Body(const std::vector<Span>& batch) const {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* process = request.add_resource_spans();
  auto* resource = process->mutable_resource()->mutable_attributes();
  AddAttribute(resource, "service.name", options_.service.name);
  AddAttribute(resource, "service.namespace", std::string("baton"));
  AddAttribute(resource, "service.instance.id", options_.service.instance);
  AddAttribute(resource, "service.version", std::string(kVersion));
  otlp::ScopeSpans* spans = process->add_scope_spans();
  spans->mutable_scope()->set_name("baton");
  spans->mutable_scope()->set_version(kVersion);
  for (const Span& span : batch) ToOtlp(span, spans->add_spans());
  return request.SerializeAsString();
}

}  // namespace baton::tracing
