// One thread with an inbox and timers: what owns the state of a transport whose I/O runs on other threads.
#ifndef BATON_KVTRANSFER_EVENT_LOOP_H_
#define BATON_KVTRANSFER_EVENT_LOOP_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::kvtransfer {

// Thread-safe. The inbox is bounded by what its posters bound: each owes at most a few tasks for each thing it owns.
class EventLoop {
 public:
  using Task = absl::AnyInvocable<void()>;

  // `on_tick` runs on the thread after each round of tasks and when the time it returned last has come.
  explicit EventLoop(std::function<absl::Time(absl::Time now)> on_tick);
  ~EventLoop() { Stop(); }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `task` on the thread, in order; false when the loop has stopped, and `task` is then untouched.
  bool Post(Task&& task);
  // Runs what was posted, then ends the thread. Idempotent; not from the thread itself.
  void Stop();

 private:
  void Run();

  const std::function<absl::Time(absl::Time)> on_tick_;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  Mutex join_mu_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_EVENT_LOOP_H_
