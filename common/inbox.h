// A bounded queue from many threads to one: how RPC reactions reach a thread that owns state.
#ifndef BATON_COMMON_INBOX_H_
#define BATON_COMMON_INBOX_H_

#include <deque>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton {

// Thread-safe. Producers never wait: a full or closed inbox refuses, and the caller answers its peer.
template <class T>
class Inbox {
 public:
  explicit Inbox(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `item` is then left as it was.
  bool TryPush(T&& item) {
    MutexLock lock(&mu_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    cv_.Signal();
    return true;
  }
  bool TryPush(const T& item) { return TryPush(T(item)); }

  // Waits for an item. Empty when closed and drained, or after `timeout`.
  std::optional<T> Pop(absl::Duration timeout = absl::Hours(24)) {
    MutexLock lock(&mu_);
    const absl::Time until = absl::Now() + timeout;
    while (items_.empty() && !closed_) {
      const absl::Duration left = until - absl::Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      cv_.WaitWithTimeout(&mu_, left);
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  // All items there are, at once, without waiting.
  std::vector<T> PopAll() {
    MutexLock lock(&mu_);
    std::vector<T> all(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
    items_.clear();
    return all;
  }

  // Further pushes fail; what is inside can still be popped.
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    cv_.SignalAll();
  }

  bool closed() const {
    MutexLock lock(&mu_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  CondVar cv_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton

#endif  // BATON_COMMON_INBOX_H_
