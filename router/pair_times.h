// What a hand-over between two workers takes, measured: bytes per second of each pair, as Fetched tells, and pairs whose
// hand-over failed a moment ago (both ends may be well, and only the way between them not).
//
// Thread contract: thread-compatible.
#ifndef BATON_ROUTER_PAIR_TIMES_H_
#define BATON_ROUTER_PAIR_TIMES_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace baton::router {

class PairTimes {
 public:
  struct Options {
    size_t max_pairs = 1 << 16;  // beyond that all are forgotten and learnt again
    absl::Duration bad_for = absl::Seconds(10);
  };
  PairTimes() = default;
  explicit PairTimes(const Options& options) : options_(options) {}

  // Workers go by WorkerSnapshot.key.
  void Measured(uint64_t prefill, uint64_t decode, uint64_t bytes, absl::Duration duration);
  void Failed(uint64_t prefill, uint64_t decode, absl::Time now);

  // Microseconds for `bytes`: the pair's own measure, or all pairs' mean, or 0 when nothing was ever measured.
  double EstimateUs(uint64_t prefill, uint64_t decode, uint64_t bytes) const;
  bool Bad(uint64_t prefill, uint64_t decode, absl::Time now) const;

 private:
  struct Pair {
    double us_per_byte = 0;  // moving mean; 0: not measured
    absl::Time bad_until = absl::InfinitePast();
  };
  const Pair* Find(uint64_t prefill, uint64_t decode) const;
  Pair* FindOrAdd(uint64_t prefill, uint64_t decode);

  const Options options_;
  double mean_us_per_byte_ = 0;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, Pair> pairs_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PAIR_TIMES_H_
