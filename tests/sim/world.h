// The ground a simulation stands on: one queue of events, one clock, one source of chance, and processes that can freeze
// and die. All of a schedule follows from its seed.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_WORLD_H_
#define BATON_TESTS_SIM_WORLD_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace baton::sim {

class World {
 public:
  explicit World(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15 + 1) {}

  SimulatedClock* clock() { return &clock_; }
  absl::Time now() { return clock_.Now(); }
  uint64_t Random() { return random_(); }
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  bool Chance(uint64_t one_in) { return Below(one_in) == 0; }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const int64_t span = absl::ToInt64Microseconds(high - low);
    return low + absl::Microseconds(span > 0 ? Below(static_cast<uint64_t>(span)) : 0);
  }

  void At(absl::Time when, std::function<void()> what) { events_.emplace(std::max(when, now()), std::move(what)); }
  void After(absl::Duration delay, std::function<void()> what) { At(now() + delay, std::move(what)); }
  // The next event; those of one moment in the order they came in.
  void Step() {
    auto node = events_.extract(events_.begin());
    clock_.Advance(node.key() - now());
    ++steps_;
    node.mapped()();
  }
  void RunUntil(absl::Time when) {
    while (!events_.empty() && events_.begin()->first <= when) Step();
    if (now() < when) clock_.Advance(when - now());
  }
  // Forgets all that was to come; its owners may go now.
  void Clear() { events_.clear(); }
  uint64_t steps() const { return steps_; }

  // What a schedule did, folded: two runs of one seed must agree.
  void Note(absl::string_view what) {
    for (const char c : absl::StrCat(what, "@", absl::ToUnixMicros(now()))) {
      trace_ = (trace_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
    }
    if (verbose) printf("%10.3f %s\n", absl::ToDoubleMilliseconds(now() - absl::UnixEpoch()), std::string(what).c_str());
  }
  uint64_t trace() const { return trace_; }
  // An invariant broke.
  void Violation(std::string what) {
    Note(absl::StrCat("VIOLATION ", what));
    if (violations_.size() < 8) violations_.push_back(std::move(what));
  }
  const std::vector<std::string>& violations() const { return violations_; }

  bool verbose = false;

 private:
  std::mt19937_64 random_;
  SimulatedClock clock_;
  std::multimap<absl::Time, std::function<void()>> events_;
  std::vector<std::string> violations_;
  uint64_t trace_ = 0xCBF29CE484222325;
  uint64_t steps_ = 0;
};

// One life of one process: what is to run in it waits while it is frozen and never runs once it is dead.
class Process : public std::enable_shared_from_this<Process> {
 public:
  Process(World* world, std::string name, std::string incarnation)
      : world_(world), name_(std::move(name)), incarnation_(std::move(incarnation)) {}

  const std::string& name() const { return name_; }
  const std::string& incarnation() const { return incarnation_; }
  World* world() const { return world_; }
  bool alive() const { return alive_; }
  bool frozen() const { return frozen_; }
  bool was_frozen() const { return was_frozen_; }

  void Run(const std::function<void()>& what) {
    if (!alive_) return;
    if (frozen_ || !backlog_.empty()) {
      backlog_.push_back(what);
    } else {
      what();
    }
  }
  // `what` as this process's own timer.
  void After(absl::Duration delay, std::function<void()> what) {
    world_->After(delay, [self = shared_from_this(), what = std::move(what)] { self->Run(what); });
  }
  // Soon, on another of its threads.
  void Soon(std::function<void()> what) {
    After(world_->Between(absl::ZeroDuration(), absl::Microseconds(200)), std::move(what));
  }
  void Freeze() { frozen_ = was_frozen_ = true; }
  void Thaw() {
    frozen_ = false;
    while (alive_ && !frozen_ && !backlog_.empty()) {
      const std::function<void()> what = std::move(backlog_.front());
      what();  // what it causes in this process lines up behind
      backlog_.pop_front();
    }
  }
  void Die() {
    alive_ = false;
    backlog_.clear();
  }

 private:
  World* const world_;
  const std::string name_, incarnation_;
  bool alive_ = true, frozen_ = false, was_frozen_ = false;
  std::deque<std::function<void()>> backlog_;
};

using ProcessPtr = std::shared_ptr<Process>;

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_WORLD_H_
