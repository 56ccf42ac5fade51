#include "cli/bench/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::bench {
namespace {

bool IsGood(const RequestRecord& r, const Goodput& limits) {
  return (!limits.ttft_ms || r.ttft_ms() <= *limits.ttft_ms) && (!limits.tpot_ms || r.tpot_ms() <= *limits.tpot_ms) &&
         (!limits.e2el_ms || r.e2el_ms() <= *limits.e2el_ms);
}

void AppendGaps(const RequestRecord& r, std::vector<double>* gaps_ms) {
  for (size_t i = 1; i < r.token_s.size(); ++i) gaps_ms->push_back((r.token_s[i] - r.token_s[i - 1]) * 1e3);
}

// The most requests that were in flight at one moment.
uint64_t PeakConcurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& r : records) {
    changes.emplace_back(r.sent_s, 1);
    changes.emplace_back(r.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());  // at one moment, ends come before starts
  int64_t now = 0, peak = 0;
  for (const auto& [at, change] : changes) peak = std::max(peak, now += change);
  return static_cast<uint64_t>(peak);
}

double BestSecond(const std::vector<RequestRecord>& records) {
  std::map<int64_t, uint64_t> tokens;
  uint64_t best = 0;
  for (const RequestRecord& r : records) {
    if (!r.ok()) continue;
    for (const double at : r.token_s) best = std::max(best, ++tokens[static_cast<int64_t>(at)]);
  }
  return static_cast<double>(best);
}

std::optional<double> PercentileOf(std::vector<double> values, double p) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Percentile(values, p);
}

}  // namespace

absl::StatusOr<Goodput> ParseGoodput(const std::vector<std::string>& words) {
  Goodput goodput;
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    std::optional<double>* limit = name == "ttft"   ? &goodput.ttft_ms
                                   : name == "tpot" ? &goodput.tpot_ms
                                   : name == "e2el" ? &goodput.e2el_ms
                                                    : nullptr;
    double ms = 0;
    if (limit == nullptr || colon == std::string::npos || !absl::SimpleAtod(word.substr(colon + 1), &ms) ||
        !std::isfinite(ms) || ms < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--goodput has \"", word.substr(0, 40),
                                                     "\"; expected ttft, tpot or e2el with a limit in milliseconds, "
                                                     "as in --goodput ttft:200 tpot:50"));
    }
    if (limit->has_value()) return absl::InvalidArgumentError(absl::StrCat("--goodput gives ", name, " twice"));
    *limit = ms;
  }
  return goodput;
}

double P99(const Metrics& m, const Distribution& d) {
  const auto at = std::find(m.percentiles.begin(), m.percentiles.end(), 99.0);
  return d.percentiles[static_cast<size_t>(at - m.percentiles.begin())];
}

Metrics Measure(const std::vector<RequestRecord>& records, double duration_s, const Goodput& goodput,
                std::vector<double> percentiles) {
  if (std::find(percentiles.begin(), percentiles.end(), 99.0) == percentiles.end()) percentiles.push_back(99);
  Metrics m;
  m.duration_s = duration_s;
  std::vector<double> ttft, tpot, itl, e2el, delay, transfer;
  uint64_t good = 0;
  for (const RequestRecord& r : records) {
    delay.push_back((r.sent_s - r.intended_s) * 1e3);
    if (r.abandoned) {
      ++m.abandoned;
      continue;
    }
    if (!r.ok()) {
      ++m.failed;
      ++m.errors[absl::StatusCodeToString(r.code)];
      if (m.first_error.empty()) m.first_error = r.error;
      continue;
    }
    ++m.completed;
    m.total_input_tokens += r.prompt_tokens;
    m.total_cached_tokens += r.cached_tokens;
    m.total_output_tokens += r.token_s.size();
    m.kv_bytes += r.kv_bytes;
    m.output_hash += r.output_hash;
    ttft.push_back(r.ttft_ms());
    if (r.has_tpot()) tpot.push_back(r.tpot_ms());
    AppendGaps(r, &itl);
    e2el.push_back(r.e2el_ms());
    if (r.kv_bytes > 0) transfer.push_back(r.transfer_ms);
    good += IsGood(r, goodput);
  }
  if (duration_s > 0) {
    m.request_throughput = static_cast<double>(m.completed) / duration_s;
    m.output_throughput = static_cast<double>(m.total_output_tokens) / duration_s;
    m.total_token_throughput = static_cast<double>(m.total_input_tokens + m.total_output_tokens) / duration_s;
    if (goodput.any()) m.request_goodput = static_cast<double>(good) / duration_s;
  }
  m.max_output_tokens_per_s = BestSecond(records);
  m.max_concurrent_requests = PeakConcurrency(records);
  m.ttft_ms = Describe(std::move(ttft), percentiles);
  m.tpot_ms = Describe(std::move(tpot), percentiles);
  m.itl_ms = Describe(std::move(itl), percentiles);
  m.e2el_ms = Describe(std::move(e2el), percentiles);
  m.send_delay_ms = Describe(std::move(delay), percentiles);
  m.transfer_ms = Describe(std::move(transfer), percentiles);
  m.percentiles = std::move(percentiles);
  return m;
}

std::vector<Slice> SliceTime(const std::vector<RequestRecord>& records, double duration_s, int num_slices) {
  if (duration_s <= 0 || num_slices <= 0) return {};
  const auto n = static_cast<size_t>(num_slices);
  const double width = duration_s / num_slices;
  const auto slice_of = [&](double at) { return std::min(n - 1, static_cast<size_t>(std::max(0.0, at / width))); };
  std::vector<uint64_t> tokens(n);
  std::vector<std::vector<double>> ttft(n), itl(n);
  std::vector<double> busy_s(n);
  for (const RequestRecord& r : records) {
    for (size_t i = slice_of(r.sent_s); i <= slice_of(r.end_s); ++i) {
      const double begin = static_cast<double>(i) * width;
      busy_s[i] += std::max(0.0, std::min(r.end_s, begin + width) - std::max(r.sent_s, begin));
    }
    if (!r.ok()) continue;
    for (size_t i = 0; i < r.token_s.size(); ++i) {
      const size_t slice = slice_of(r.token_s[i]);
      ++tokens[slice];
      if (i == 0) ttft[slice].push_back(r.ttft_ms());
      if (i > 0) itl[slice].push_back((r.token_s[i] - r.token_s[i - 1]) * 1e3);
    }
  }
  std::vector<Slice> slices(n);
  for (size_t i = 0; i < n; ++i) {
    slices[i].begin_s = static_cast<double>(i) * width;
    slices[i].end_s = slices[i].begin_s + width;
    slices[i].tokens_per_second = static_cast<double>(tokens[i]) / width;
    slices[i].concurrency = busy_s[i] / width;
    slices[i].ttft_median_ms = PercentileOf(ttft[i], 50);
    slices[i].ttft_p99_ms = PercentileOf(std::move(ttft[i]), 99);
    slices[i].itl_median_ms = PercentileOf(itl[i], 50);
    slices[i].itl_p99_ms = PercentileOf(std::move(itl[i]), 99);
  }
  return slices;
}

}  // namespace baton::bench
