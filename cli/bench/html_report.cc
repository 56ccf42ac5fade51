#include "cli/bench/html_report.h"

#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/plot.h"
#include "cli/output.h"

namespace baton::bench {
namespace {

constexpr int kSlices = 100;
constexpr size_t kMaxDots = 2000;

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --fg: #1a1a1a; --bg: #ffffff; --dim: #767676; --line: #dddddd;
  --c0: #0b61a4; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e6e6e6; --bg: #161616; --dim: #9a9a9a; --line: #383838;
    --c0: #6cb6ff; --c1: #ff9966; --c2: #5fd38d; --c3: #c79bff; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg); margin: 2rem auto;
  max-width: 1340px; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
pre { overflow-x: auto; background: color-mix(in srgb, var(--fg) 6%, transparent); padding: .7rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--fg); }
svg .title { font-weight: 600; font-size: 13px; } svg .grid { stroke: var(--line); } svg .axis { stroke: var(--dim); }
svg path { fill: none; stroke-width: 1.8; } svg .s0 { stroke: var(--c0); } svg .s1 { stroke: var(--c1); }
svg .s2 { stroke: var(--c2); } svg .s3 { stroke: var(--c3); } svg .c0 { fill: var(--c0); } svg .c1 { fill: var(--c1); }
svg .c2 { fill: var(--c2); } svg .c3 { fill: var(--c3); } footer { color: var(--dim); margin-top: 2rem; }
)";

// What tells one run of a sweep from the next.
std::string RunName(const RunResult& r) {
  if (std::isfinite(r.info.request_rate)) return absl::StrFormat("%g req/s", r.info.request_rate);
  if (r.info.max_concurrency) return absl::StrCat(*r.info.max_concurrency, " at once");
  return r.info.mode;
}

PlotSeries OverTime(absl::string_view name, const std::vector<Slice>& slices,
                    const std::function<std::optional<double>(const Slice&)>& value) {
  PlotSeries series{.name = std::string(name)};
  for (const Slice& s : slices) series.points.push_back({(s.begin_s + s.end_s) / 2, value(s), ""});
  return series;
}

// Every answer's TTFT as a dot; of very many an even choice.
PlotSeries TtftDots(const std::vector<RequestRecord>& records) {
  PlotSeries dots{.name = "each", .line = false};
  const size_t step = records.size() / kMaxDots + 1;
  for (size_t i = 0; i < records.size(); i += step) {
    if (records[i].ok()) dots.points.push_back({records[i].token_s.front(), records[i].ttft_ms(), ""});
  }
  return dots;
}

std::string RunSection(const RunResult& r) {
  const std::vector<Slice> slices = SliceTime(r.records, r.metrics.duration_s, kSlices);
  const auto plot = [](absl::string_view title, absl::string_view unit, std::vector<PlotSeries> series) {
    return ToSvg({std::string(title), "seconds since the start", std::string(unit), std::move(series)});
  };
  std::string out = absl::StrCat("<section>\n<h2>", EscapeHtml(RunName(r)), "</h2>\n<div class=\"plots\">\n");
  absl::StrAppend(
      &out, plot("Time to first token (TTFT)", "ms",
                 {OverTime("median", slices, [](const Slice& s) { return s.ttft_median_ms; }), TtftDots(r.records)}));
  absl::StrAppend(&out, plot("Inter-token latency (ITL)", "ms",
                             {OverTime("median", slices, [](const Slice& s) { return s.itl_median_ms; }),
                              OverTime("p99", slices, [](const Slice& s) { return s.itl_p99_ms; })}));
  absl::StrAppend(&out, plot("Output throughput", "tokens/s",
                             {OverTime("tokens/s", slices, [](const Slice& s) { return s.tokens_per_second; })}));
  absl::StrAppend(&out, plot("Concurrency", "requests in flight",
                             {OverTime("in flight", slices, [](const Slice& s) { return s.concurrency; })}));
  return absl::StrCat(out, "</div>\n<pre>", EscapeHtml(cli::Printable(FormatRun(r))), "</pre>\n</section>\n");
}

std::string SweepSection(const std::vector<RunResult>& results) {
  PlotSeries median{.name = "median", .marks = true}, p99{.name = "p99", .marks = true};
  PlotSeries ttft{.name = "median", .marks = true};
  for (const RunResult& r : results) {
    if (r.metrics.itl_ms.count == 0) continue;
    const double x = r.metrics.output_throughput;
    median.points.push_back({x, r.metrics.itl_ms.median, RunName(r)});
    p99.points.push_back({x, P99(r.metrics, r.metrics.itl_ms), ""});
    ttft.points.push_back({x, r.metrics.ttft_ms.median, RunName(r)});
  }
  return absl::StrCat(
      "<section>\n<h2>What batching buys: throughput against latency</h2>\n<div class=\"plots\">\n",
      ToSvg({"ITL against output throughput", "output tokens/s, all requests together", "ITL, ms", {median, p99}}),
      ToSvg({"TTFT against output throughput", "output tokens/s, all requests together", "TTFT, ms", {ttft}}),
      "</div>\n<pre>", EscapeHtml(FormatSweep(results)), "</pre>\n</section>\n");
}

}  // namespace

std::string HtmlReport(const std::vector<RunResult>& results) {
  const RunInfo info = results.empty() ? RunInfo() : results.front().info;
  const std::string title = absl::StrCat("baton bench: ", info.model, info.label.empty() ? "" : ", ", info.label);
  std::string out = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      EscapeHtml(cli::Printable(title)), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<h1>",
      EscapeHtml(cli::Printable(title)), "</h1>\n");
  if (results.size() > 1) absl::StrAppend(&out, SweepSection(results));
  for (const RunResult& r : results) absl::StrAppend(&out, RunSection(r));
  absl::StrAppend(&out, "<footer>", EscapeHtml(info.date),
                  ". Latencies count from the intended start. Percentiles interpolate linearly between closest ranks. "
                  "The lines over time are of 100 equal slices.</footer>\n</body>\n</html>\n");
  return out;
}

}  // namespace baton::bench
