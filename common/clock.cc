#include "common/clock.h"

#include <chrono>

namespace baton {
namespace {

class RealClock : public Clock {
 public:
  RealClock() : wall_start_(absl::Now()), steady_start_(std::chrono::steady_clock::now()) {}
  absl::Time Now() override {
    return wall_start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const absl::Time wall_start_;
  const std::chrono::steady_clock::time_point steady_start_;
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock();
  return clock;
}

}  // namespace baton
