#include "router/load_history.h"

#include <algorithm>
#include <cmath>

namespace baton::router {

constexpr double kLeastMs = 0.01;

void LoadHistory::Histogram::Add(double ms) {
  const double octaves = std::log2(std::max(ms, kLeastMs) / kLeastMs);
  ++counts_[static_cast<size_t>(std::min(octaves * kPerOctave, static_cast<double>(counts_.size() - 1)))];
  ++total_;
}

double LoadHistory::Histogram::Percentile(double p) const {
  if (total_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::ceil(p * static_cast<double>(total_)));
  uint64_t seen = 0;
  size_t bucket = 0;
  while (bucket + 1 < counts_.size() && (seen += counts_[bucket]) < rank) ++bucket;
  return kLeastMs * std::exp2((static_cast<double>(bucket) + 0.5) / kPerOctave);
}

void LoadHistory::Advance(absl::Time now) {
  const int64_t second = absl::ToUnixSeconds(now);
  if (current_.unix_s == 0) current_.unix_s = second;
  // After a long pause only what fits is filled in.
  if (second - current_.unix_s > static_cast<int64_t>(kSeconds)) {
    seconds_.clear();
    current_ = {.unix_s = second - static_cast<int64_t>(kSeconds)};
    ttft_ = itl_ = {};
  }
  while (current_.unix_s < second) {
    current_.ttft_p50_ms = ttft_.Percentile(0.50);
    current_.ttft_p99_ms = ttft_.Percentile(0.99);
    current_.itl_p50_ms = itl_.Percentile(0.50);
    current_.itl_p99_ms = itl_.Percentile(0.99);
    seconds_.push_back(current_);
    if (seconds_.size() > kSeconds) seconds_.pop_front();
    current_ = {.unix_s = current_.unix_s + 1};
    ttft_ = itl_ = {};
  }
}

void LoadHistory::FirstToken(absl::Time now, absl::Duration ttft, uint32_t prompt_tokens) {
  MutexLock lock(&mu_);
  Advance(now);
  ++current_.first_tokens;
  current_.prompt_tokens += prompt_tokens;
  ttft_.Add(absl::ToDoubleMilliseconds(ttft));
}

void LoadHistory::Tokens(absl::Time now, uint32_t count, const float* itl_ms, size_t num_itl) {
  MutexLock lock(&mu_);
  Advance(now);
  current_.generated_tokens += count;
  for (size_t i = 0; i < num_itl; ++i) itl_.Add(itl_ms[i]);
}

void LoadHistory::Tick(absl::Time now, uint32_t in_flight, uint32_t queued) {
  MutexLock lock(&mu_);
  Advance(now);
  current_.in_flight = std::max(current_.in_flight, in_flight);
  current_.queued = std::max(current_.queued, queued);
}

std::vector<LoadSecond> LoadHistory::Seconds() const {
  MutexLock lock(&mu_);
  return {seconds_.begin(), seconds_.end()};
}

}  // namespace baton::router
