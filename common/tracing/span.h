// One piece of work in a trace, and its place there (https://www.w3.org/TR/trace-context/).
//
// Spans carry times, counts and names of workers and stations. Never prompts, answers or token ids, and no messages of
// errors either, which may quote them.
#ifndef BATON_COMMON_TRACING_SPAN_H_
#define BATON_COMMON_TRACING_SPAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::tracing {

// What travels with a call: which trace, and which span the callee's spans belong under.
struct SpanContext {
  uint64_t trace_high = 0, trace_low = 0;  // 128 bits, not zero
  uint64_t span_id = 0;                    // not zero
  bool sampled = false;                    // whether anybody records this trace
  std::string tracestate;                  // other systems' notes, handed on as they came

  bool operator==(const SpanContext&) const = default;
};

// nullopt: not a traceparent, or one of a version that is forbidden; the call then begins a trace of its own. A tracestate
// over 512 bytes, or with bytes that no header may hold, is dropped.
std::optional<SpanContext> ParseTraceparent(absl::string_view traceparent, absl::string_view tracestate = "");
// "00-<32 hex digits>-<16 hex digits>-01" (or -00).
std::string Traceparent(const SpanContext& context);

enum class SpanKind { kInternal, kServer };

struct Span {
  using Value = std::variant<int64_t, double, std::string>;

  const char* name = "";  // of a station (common/metrics.h), "request", "decode" or "transfer"
  SpanKind kind = SpanKind::kInternal;
  SpanContext context;
  uint64_t parent_id = 0;  // 0: the trace begins here
  absl::Time start, end;
  std::vector<std::pair<const char*, Value>> attributes;
  absl::StatusCode code = absl::StatusCode::kOk;

  void Set(const char* key, int64_t value);
  void Set(const char* key, std::string value);
  void SetMs(const char* key, absl::Duration duration);
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_SPAN_H_
