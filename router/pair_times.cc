#include "router/pair_times.h"

namespace baton::router {
namespace {

constexpr double kNewWeight = 0.2;

void Blend(double* mean, double value) { *mean = *mean == 0 ? value : *mean + kNewWeight * (value - *mean); }

}  // namespace

const PairTimes::Pair* PairTimes::Find(uint64_t prefill, uint64_t decode) const {
  const auto it = pairs_.find({prefill, decode});
  return it == pairs_.end() ? nullptr : &it->second;
}

PairTimes::Pair* PairTimes::FindOrAdd(uint64_t prefill, uint64_t decode) {
  if (pairs_.size() >= options_.max_pairs) pairs_.clear();  // incarnations that are long gone; learnt again in moments
  return &pairs_[{prefill, decode}];
}

void PairTimes::Measured(uint64_t prefill, uint64_t decode, uint64_t bytes, absl::Duration duration) {
  if (bytes == 0 || duration <= absl::ZeroDuration()) return;
  const double us_per_byte = absl::ToDoubleMicroseconds(duration) / static_cast<double>(bytes);
  Pair* pair = FindOrAdd(prefill, decode);
  Blend(&pair->us_per_byte, us_per_byte);
  pair->bad_until = absl::InfinitePast();
  Blend(&mean_us_per_byte_, us_per_byte);
}

void PairTimes::Failed(uint64_t prefill, uint64_t decode, absl::Time now) {
  FindOrAdd(prefill, decode)->bad_until = now + options_.bad_for;
}

double PairTimes::EstimateUs(uint64_t prefill, uint64_t decode, uint64_t bytes) const {
  const Pair* pair = Find(prefill, decode);
  const double us_per_byte = pair != nullptr && pair->us_per_byte > 0 ? pair->us_per_byte : mean_us_per_byte_;
  return us_per_byte * static_cast<double>(bytes);
}

bool PairTimes::Bad(uint64_t prefill, uint64_t decode, absl::Time now) const {
  const Pair* pair = Find(prefill, decode);
  return pair != nullptr && pair->bad_until > now;
}

}  // namespace baton::router
