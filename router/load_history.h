// What the router carried in each of the last seconds: requests in flight, tokens, and percentiles of the time to the
// first token and between tokens. Bounded in seconds, and within one by histograms of 8 buckets an octave (so a
// percentile is right within 9 %).
//
// Thread contract: thread-safe.
#ifndef BATON_ROUTER_LOAD_HISTORY_H_
#define BATON_ROUTER_LOAD_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::router {

struct LoadSecond {
  int64_t unix_s = 0;
  uint32_t in_flight = 0, queued = 0;  // the most that were seen in it
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  uint64_t first_tokens = 0;  // requests that got their first token
  double ttft_p50_ms = 0, ttft_p99_ms = 0;  // 0: none came
  double itl_p50_ms = 0, itl_p99_ms = 0;
};

class LoadHistory {
 public:
  static constexpr size_t kSeconds = 600;

  // A request got its first token. `now` never goes back.
  void FirstToken(absl::Time now, absl::Duration ttft, uint32_t prompt_tokens);
  // Tokens went to a client; `itl_ms`: what passed before each that was not a choice's first.
  void Tokens(absl::Time now, uint32_t count, const float* itl_ms, size_t num_itl);
  // To be called several times a second.
  void Tick(absl::Time now, uint32_t in_flight, uint32_t queued);
  // Seconds that are over, the oldest first; none is missing in between.
  std::vector<LoadSecond> Seconds() const;

 private:
  // From 10 us on; the last bucket takes what is beyond.
  class Histogram {
   public:
    void Add(double ms);
    double Percentile(double p) const;  // the bucket's geometric middle; 0 when empty

   private:
    static constexpr int kPerOctave = 8;
    std::array<uint32_t, 28 * kPerOctave> counts_{};
    uint64_t total_ = 0;
  };
  // Closes the seconds before `now`'s.
  void Advance(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  LoadSecond current_ ABSL_GUARDED_BY(mu_);
  Histogram ttft_ ABSL_GUARDED_BY(mu_);
  Histogram itl_ ABSL_GUARDED_BY(mu_);
  std::deque<LoadSecond> seconds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LOAD_HISTORY_H_
