// Notices that a loop which has something to do does not get on: a deadlock, a device that never answers, an endless step.
// Such a process answers heartbeats and keeps its connections, so that nobody else can tell.
#ifndef BATON_COMMON_STALL_WATCH_H_
#define BATON_COMMON_STALL_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton {

struct Activity {
  uint64_t turns = 0;  // that the loop has made; any change is progress
  bool busy = false;   // it has something to do
  absl::Duration longest;  // of the turns so far that did real work; 0: there was none
};

// The judgement, without time of its own. Thread-compatible.
class StallDetector {
 public:
  // `elapsed` since the last call; how long the loop has been busy in one turn, as far as was seen. The time of a caller that was
  // stopped itself (SIGSTOP, a sleeping machine) does not count: no call adds more than `most`.
  absl::Duration Observe(const Activity& activity, absl::Duration elapsed, absl::Duration most);

 private:
  std::optional<uint64_t> turn_;  // in which it was busy
  absl::Duration stalled_;
};

// How long a turn may take: `limit`, or a thousand times the longest so far and at least 10 s, if that is less. (A step of many
// rows takes at most so many times as long as one of a single row; what a slow machine needs for its first is not known.)
absl::Duration StallLimit(absl::Duration limit, absl::Duration longest);

// A thread that asks every quarter of a second, or four times in `limit` if that is shorter. Thread contract: one owner.
class StallWatch {
 public:
  // The limit is StallLimit(`limit`, ...). `sample` must not wait for the loop. `on_stall` is called once, from the watch's thread.
  StallWatch(absl::Duration limit, std::function<Activity()> sample, std::function<void(absl::Duration)> on_stall);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;

 private:
  void Run();

  const absl::Duration limit_;
  const std::function<Activity()> sample_;
  const std::function<void(absl::Duration)> on_stall_;
  Mutex mu_;
  CondVar cv_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// The process ends with code 1 after that many seconds, whatever its threads hold: for an end that first writes a log, for which a
// thread that stands still may hold the allocator or a lock. Uses SIGALRM.
void EndProcessWithin(unsigned seconds);

}  // namespace baton

#endif  // BATON_COMMON_STALL_WATCH_H_
