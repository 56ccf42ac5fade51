// Time as a value that tests can hold still.
#ifndef BATON_COMMON_CLOCK_H_
#define BATON_COMMON_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton {

// Thread-safe. Now() never goes back: it is wall time at start plus the monotonic clock since.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  // The process's real clock; never destroyed.
  static Clock* Real();
};

// Moves only when told to.
class SimulatedClock : public Clock {
 public:
  explicit SimulatedClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() override {
    MutexLock lock(&mu_);
    return now_;
  }
  void Advance(absl::Duration d) {
    MutexLock lock(&mu_);
    now_ += d;
  }

 private:
  Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton

#endif  // BATON_COMMON_CLOCK_H_
