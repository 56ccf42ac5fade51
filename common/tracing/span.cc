#include "common/tracing/span.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::tracing {
namespace {

constexpr size_t kLength = 55;  // of version 00
constexpr size_t kMaxTracestate = 512;

// Lower-case digits only, as the recommendation has it.
std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

}  // namespace

std::optional<SpanContext> ParseTraceparent(absl::string_view text, absl::string_view tracestate) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const std::optional<uint64_t> version = ParseHex(text.substr(0, 2));
  const std::optional<uint64_t> high = ParseHex(text.substr(3, 16));
  const std::optional<uint64_t> low = ParseHex(text.substr(19, 16));
  const std::optional<uint64_t> span = ParseHex(text.substr(36, 16));
  const std::optional<uint64_t> flags = ParseHex(text.substr(53, 2));
  if (!version || !high || !low || !span || !flags || *version == 0xff) return std::nullopt;
  // A later version may say more behind what is known.
  if (text.size() > kLength && (*version == 0 || text[kLength] != '-')) return std::nullopt;
  if ((*high == 0 && *low == 0) || *span == 0) return std::nullopt;
  SpanContext context{*high, *low, *span, (*flags & 1) != 0, {}};
  const bool printable = std::all_of(tracestate.begin(), tracestate.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (printable && tracestate.size() <= kMaxTracestate) context.tracestate = std::string(tracestate);
  return context;
}

std::string Traceparent(const SpanContext& context) {
  return absl::StrCat("00-", absl::Hex(context.trace_high, absl::kZeroPad16), absl::Hex(context.trace_low, absl::kZeroPad16),
                      "-", absl::Hex(context.span_id, absl::kZeroPad16), context.sampled ? "-01" : "-00");
}

void Span::Set(const char* key, int64_t value) { attributes.emplace_back(key, value); }
void Span::Set(const char* key, std::string value) { attributes.emplace_back(key, std::move(value)); }
void Span::SetMs(const char* key, absl::Duration duration) {
  attributes.emplace_back(key, absl::ToDoubleMilliseconds(duration));
}

}  // namespace baton::tracing
