#include "router/timers.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <utility>

namespace baton::router {
namespace {

// gRPC runs an alarm's function exactly once, also when it is cancelled, perhaps after the alarm is gone. So what is to be
// done belongs to both, and goes with the second.
class AlarmTimer final : public Timer {
 public:
  AlarmTimer(absl::Duration delay, std::function<void()> then) : state_(new State{std::move(then)}) {
    alarm_.Set(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(delay), [state = state_](bool passed) {
      if (passed) state->then();
      state->Drop();
    });
  }
  ~AlarmTimer() override {
    alarm_.Cancel();
    state_->Drop();
  }

 private:
  struct State {
    std::function<void()> then;
    std::atomic<int> owners{2};
    void Drop() {
      if (owners.fetch_sub(1) == 1) delete this;
    }
  };

  State* const state_;
  grpc::Alarm alarm_;
};

class AlarmTimers final : public Timers {
 public:
  std::unique_ptr<Timer> After(absl::Duration delay, std::function<void()> then) override {
    return std::make_unique<AlarmTimer>(delay, std::move(then));
  }
};

}  // namespace

Timers* Timers::Real() {
  static AlarmTimers* timers = new AlarmTimers();
  return timers;
}

}  // namespace baton::router
