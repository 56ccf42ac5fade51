#include "kvtransfer/event_loop.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace baton::kvtransfer {

EventLoop::EventLoop(std::function<absl::Time(absl::Time)> on_tick)
    : on_tick_(std::move(on_tick)), thread_([this] { Run(); }) {}

bool EventLoop::Post(Task&& task) {
  MutexLock lock(&mu_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  wake_.Signal();
  return true;
}

void EventLoop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.Signal();
  }
  MutexLock lock(&join_mu_);
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Run() {
  std::deque<Task> tasks;
  absl::Time next = absl::InfiniteFuture();
  for (;;) {
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) {
        const absl::Duration left = next - absl::Now();
        if (left <= absl::ZeroDuration()) break;
        wake_.WaitWithTimeout(&mu_, std::min(left, absl::Minutes(1)));
      }
      if (tasks_.empty() && stopping_) return;
      tasks.swap(tasks_);
    }
    for (Task& task : tasks) task();
    tasks.clear();
    next = on_tick_(absl::Now());
  }
}

}  // namespace baton::kvtransfer
