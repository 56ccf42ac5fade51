#include "cli/bench/trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/philox.h"

namespace baton::bench {
namespace {

constexpr size_t kMaxRows = 1'000'000;
constexpr uint64_t kMaxTokens = 100'000'000;  // of one row
constexpr double kTickSlack = 0.02;           // seconds
constexpr char kAzureHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

absl::Status BadLine(absl::string_view name, size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("The trace ", name, ", line ", line, ": ", what, "."));
}

absl::StatusOr<TraceRow> ParseMooncake(absl::string_view line, int64_t* at_ms) {
  const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  const auto count = [&](const char* key) -> int64_t {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number()) return -1;
    const double value = json[key].get<double>();
    return value >= 0 && value <= static_cast<double>(kMaxTokens) * 1000 ? static_cast<int64_t>(value) : -1;
  };
  *at_ms = count("timestamp");
  const int64_t input = count("input_length"), output = count("output_length");
  if (*at_ms < 0 || input < 0 || output < 0 || static_cast<uint64_t>(std::max(input, output)) > kMaxTokens) {
    return absl::InvalidArgumentError(
        "expected {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens}");
  }
  TraceRow row;
  row.at_s = static_cast<double>(*at_ms) / 1e3;
  row.input_tokens = static_cast<uint64_t>(input);
  row.output_tokens = static_cast<uint64_t>(output);
  if (!json.contains("hash_ids")) return row;
  const auto& ids = json["hash_ids"];
  if (!ids.is_array()) return absl::InvalidArgumentError("hash_ids is not an array");
  for (const auto& id : ids) {
    if (!id.is_number_unsigned()) return absl::InvalidArgumentError("hash_ids holds something else than whole numbers");
    row.hash_ids.push_back(id.get<uint64_t>());
  }
  return row;
}

absl::StatusOr<TraceRow> ParseAzure(absl::string_view line, absl::Time* at) {
  const std::vector<std::string> cells = absl::StrSplit(line, ',');
  std::string error;
  TraceRow row;
  if (cells.size() < 3 ||
      (!absl::ParseTime("%Y-%m-%d %H:%M:%E*S", cells[0], at, &error) &&
       !absl::ParseTime("%Y-%m-%d %H:%M:%E*S%Ez", cells[0], at, &error)) ||
      !absl::SimpleAtoi(cells[1], &row.input_tokens) || !absl::SimpleAtoi(cells[2], &row.output_tokens) ||
      std::max(row.input_tokens, row.output_tokens) > kMaxTokens) {
    return absl::InvalidArgumentError(
        "expected a time, prompt tokens and output tokens, as in "
        "2023-11-16 18:17:03.9799600,4808,10");
  }
  return row;
}

// Seconds between the ticks that timestamps stand on, 0 when they are arrivals as they were. Published ticks are off by
// a millisecond here and there. `rows` by time, the first at 0.
double DetectGrid(const std::vector<TraceRow>& rows) {
  std::vector<double> gaps;
  for (size_t i = 1; i < rows.size(); ++i) {
    const double gap = rows[i].at_s - rows[i - 1].at_s;
    if (gap > 0.1) gaps.push_back(gap);
  }
  if (gaps.empty() || rows.size() < 3) return 0;
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<int64_t>((gaps.size() - 1) / 2), gaps.end());
  const double grid = std::round(gaps[(gaps.size() - 1) / 2] * 10) / 10;
  if (grid < 1) return 0;
  const auto on_tick = [&](const TraceRow& row) { return std::abs(std::remainder(row.at_s, grid)) <= kTickSlack; };
  const auto count = std::count_if(rows.begin(), rows.end(), on_tick);
  return static_cast<double>(count) >= 0.9 * static_cast<double>(rows.size()) ? grid : 0;
}

uint64_t ScaledTokens(uint64_t tokens, double factor) {
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(static_cast<double>(tokens) * factor)));
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(absl::string_view text, absl::string_view name) {
  Trace trace;
  absl::Time first_time = absl::InfiniteFuture();
  std::vector<absl::Time> times;
  size_t number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    if (trace.format.empty()) {
      const bool azure = absl::StartsWith(line, kAzureHeader);
      if (!azure && line[0] != '{') {
        return BadLine(name, number,
                       absl::StrCat("it is neither a JSON line of Mooncake's traces nor the header ", kAzureHeader));
      }
      trace.format = azure ? "azure" : "mooncake";
      if (azure) continue;
    }
    if (trace.rows.size() == kMaxRows) return BadLine(name, number, "more than 1,000,000 requests; cut the file");
    int64_t at_ms = 0;
    absl::Time at;
    absl::StatusOr<TraceRow> row = trace.format == "azure" ? ParseAzure(line, &at) : ParseMooncake(line, &at_ms);
    if (!row.ok()) return BadLine(name, number, absl::string_view(row.status().message()));
    if (trace.format == "azure") {
      first_time = std::min(first_time, at);
      times.push_back(at);
    }
    trace.rows.push_back(*std::move(row));
  }
  if (trace.rows.empty()) return absl::InvalidArgumentError(absl::StrCat("The trace ", name, " holds no request."));
  for (size_t i = 0; i < times.size(); ++i) trace.rows[i].at_s = absl::ToDoubleSeconds(times[i] - first_time);
  std::stable_sort(trace.rows.begin(), trace.rows.end(),
                   [](const TraceRow& a, const TraceRow& b) { return a.at_s < b.at_s; });
  const double start = trace.rows.front().at_s;
  for (TraceRow& row : trace.rows) row.at_s -= start;
  trace.grid_s = DetectGrid(trace.rows);
  for (TraceRow& row : trace.rows) {
    if (trace.grid_s == 0) break;
    const double tick = std::round(row.at_s / trace.grid_s) * trace.grid_s;
    if (std::abs(row.at_s - tick) <= kTickSlack) row.at_s = tick;
  }
  return trace;
}

ScaledTrace Scale(const Trace& trace, const TraceScale& scale) {
  ScaledTrace scaled;
  scaled.block_tokens = ScaledTokens(kTraceBlockTokens, scale.length);
  for (size_t i = 0; i < trace.rows.size(); ++i) {
    TraceRow row = trace.rows[i];
    row.at_s += trace.grid_s * PhiloxUniform(scale.seed, static_cast<uint32_t>(i), 0, 0x71C);
    row.at_s /= scale.speed;
    row.input_tokens = ScaledTokens(row.input_tokens, scale.length);
    row.output_tokens = ScaledTokens(row.output_tokens, scale.length);
    if (scale.max_seconds > 0 && row.at_s > scale.max_seconds) continue;
    if (scale.max_context > 0 && row.input_tokens + row.output_tokens > scale.max_context) {
      ++scaled.num_too_long;
      continue;
    }
    scaled.rows.push_back(std::move(row));
    // Rows of one tick change places when they are spread, no others: the rest of a trace on a grid is not needed.
    if (scale.max_requests > 0 && scaled.rows.size() == scale.max_requests) break;
  }
  std::stable_sort(scaled.rows.begin(), scaled.rows.end(),
                   [](const TraceRow& a, const TraceRow& b) { return a.at_s < b.at_s; });
  return scaled;
}

}  // namespace baton::bench
