// A thread that works, waits, and can be told to stop while it waits.
#ifndef BATON_COMMON_MEMBERSHIP_STOPPABLE_THREAD_H_
#define BATON_COMMON_MEMBERSHIP_STOPPABLE_THREAD_H_

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"

namespace baton::membership {

// Thread contract: Stop from any thread but its own; Sleep and stopping from its own.
class StoppableThread {
 public:
  ~StoppableThread() { Stop(); }
  void Start(std::function<void()> run) { thread_ = std::thread(std::move(run)); }
  // Ends a Sleep and waits for the end of `run`. `interrupt` ends what else it may wait for.
  void Stop(const std::function<void()>& interrupt = nullptr) {
    {
      MutexLock lock(&mu_);
      stop_ = true;
      cv_.SignalAll();
    }
    if (interrupt) interrupt();
    if (thread_.joinable()) thread_.join();
  }
  bool stopping() {
    MutexLock lock(&mu_);
    return stop_;
  }
  void Sleep(absl::Duration duration) {
    const absl::Time until = absl::Now() + duration;
    MutexLock lock(&mu_);
    while (!stop_ && absl::Now() < until) cv_.WaitWithTimeout(&mu_, until - absl::Now());
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Pauses between attempts that fail: 0.1 s, doubled up to 5 s, each shortened at random so that many do not come at once.
class Backoff {
 public:
  absl::Duration Next() {
    next_ = std::min(next_ * 2, absl::Seconds(5));
    return next_ * (0.5 + 0.5 * static_cast<double>(RandomU64() >> 11) * 0x1p-53);
  }
  void Reset() { next_ = absl::Milliseconds(50); }

 private:
  absl::Duration next_ = absl::Milliseconds(50);
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_STOPPABLE_THREAD_H_
