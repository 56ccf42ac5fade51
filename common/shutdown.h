// SIGTERM and SIGINT as calls on an ordinary thread.
#ifndef BATON_COMMON_SHUTDOWN_H_
#define BATON_COMMON_SHUTDOWN_H_

#include <functional>
#include <memory>
#include <thread>

#include "common/mutex.h"

namespace baton {

// Make one at the top of main, before any other thread starts (threads inherit the blocked signals). The first signal
// sets `draining` and calls on_drain; the second exits the process with 128 + signal at once, without destructors.
//
// Thread contract: thread-safe; on_drain runs on this object's own thread and may block.
class ShutdownSignals {
 public:
  ShutdownSignals();
  // Restores nothing: signals stay blocked until the process ends.
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // Called once, at once when a signal has arrived already. Replaces an earlier function.
  void OnDrain(std::function<void()> on_drain);
  bool draining() const;
  // As if a first signal had arrived (the Drain RPC).
  void RequestDrain();
  // Returns when draining() is true.
  void WaitForDrain();

 private:
  void Run();
  void Handle(int signal_number);

  mutable Mutex mu_;
  CondVar cv_;
  std::function<void()> on_drain_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  int signals_seen_ = 0;  // thread_ only
  int stop_fd_ = -1;
  int signal_fd_ = -1;
  std::thread thread_;
  std::thread drain_thread_;
};

// Has the parent's death drain this process, as a first SIGTERM would; at once when the parent is gone already. Needs a
// ShutdownSignals; without one the process ends.
void DrainWhenParentDies();

}  // namespace baton

#endif  // BATON_COMMON_SHUTDOWN_H_
