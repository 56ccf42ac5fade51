// The one lock of the project. std::mutex underneath, which every sanitizer understands (Debian's absl::Mutex is not
// instrumented), with clang's thread-safety annotations.
#ifndef BATON_COMMON_MUTEX_H_
#define BATON_COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace baton {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Waits release and re-take the mutex, which the caller holds. Wake-ups may be spurious: wait in a loop.
class CondVar {
 public:
  void Wait(Mutex* mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed first.
  bool WaitWithTimeout(Mutex* mu, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    // wait_until(system_clock) maps to pthread_cond_timedwait, which thread sanitizer intercepts (it does not know
    // pthread_cond_clockwait in this gcc).
    const auto until = std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout);
    const bool woken = cv_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace baton

#endif  // BATON_COMMON_MUTEX_H_
