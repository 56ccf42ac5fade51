// Time that passes for requests: a seam, so that simulations can let it pass as they like.
#ifndef BATON_ROUTER_TIMERS_H_
#define BATON_ROUTER_TIMERS_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace baton::router {

// Its end cancels it; `then` may be running meanwhile.
class Timer {
 public:
  virtual ~Timer() = default;
};

// Thread-safe.
class Timers {
 public:
  virtual ~Timers() = default;
  // Runs `then` once, on a thread of the timers' own, unless the timer goes before.
  virtual std::unique_ptr<Timer> After(absl::Duration delay, std::function<void()> then) = 0;
  // gRPC's alarms; never destroyed.
  static Timers* Real();
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TIMERS_H_
