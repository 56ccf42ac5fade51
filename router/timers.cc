#include "router/timers.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <utility>

namespace baton::router {
namespace {

class AlarmTimer final : public Timer {
 public:
  AlarmTimer(absl::Duration delay, std::function<void()> then) {
    alarm_.Set(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(delay),
               [then = std::move(then)](bool passed) {
                 if (passed) then();
               });
  }

 private:
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
