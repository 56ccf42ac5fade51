#include "cli/bench/live_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/statistics.h"

namespace baton::bench {
namespace {

std::string Latency(absl::string_view name, std::vector<double> samples) {
  if (samples.empty()) return absl::StrCat(name, " -");
  std::sort(samples.begin(), samples.end());
  return absl::StrFormat("%s %.1f/%.1f ms", name, Percentile(samples, 50), Percentile(samples, 99));
}

}  // namespace

std::string FormatProgress(const Progress& p, uint64_t total) {
  const double elapsed = std::max(p.elapsed_s, 1e-3);
  return absl::StrCat(absl::StrFormat("%5.1f s  ", p.elapsed_s), p.done, total > 0 ? absl::StrCat("/", total) : "",
                      " done, ", p.failed, " failed, ", p.in_flight, " in flight  ",
                      absl::StrFormat("%.2f req/s  %.1f tok/s  ", static_cast<double>(p.done) / elapsed,
                                      static_cast<double>(p.tokens) / elapsed),
                      Latency("TTFT p50/p99", p.ttft_ms), "  ", Latency("ITL", p.itl_ms));
}

void LiveLine::Show(const Progress& progress) {
  // A quiet quarter of a second keeps the figures of the one before.
  const Progress before = std::move(latest_);
  latest_ = progress;
  if (latest_.ttft_ms.empty()) latest_.ttft_ms = before.ttft_ms;
  if (latest_.itl_ms.empty()) latest_.itl_ms = before.itl_ms;
  if (out_->stderr_is_tty()) {
    out_->Raw(absl::StrCat("\r\x1b[K", FormatProgress(latest_, total_)));
    on_line_ = true;
  } else if (progress.elapsed_s - shown_s_ >= 5) {
    shown_s_ = progress.elapsed_s;
    out_->Note(FormatProgress(latest_, total_));
  }
}

LiveLine::~LiveLine() {
  if (on_line_) out_->Raw("\r\x1b[K");
}

}  // namespace baton::bench
