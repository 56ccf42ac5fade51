#include "common/stall_watch.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/time/clock.h"

namespace baton {

absl::Duration StallDetector::Observe(const Activity& activity, absl::Duration elapsed, absl::Duration most) {
  if (!activity.busy || turn_ != activity.turns) {
    stalled_ = absl::ZeroDuration();
    turn_ = activity.busy ? std::optional<uint64_t>(activity.turns) : std::nullopt;
    return stalled_;
  }
  stalled_ += std::clamp(elapsed, absl::ZeroDuration(), most);
  return stalled_;
}

absl::Duration StallLimit(absl::Duration limit, absl::Duration longest) {
  if (longest <= absl::ZeroDuration()) return limit;
  return std::min(limit, std::max(1000 * longest, absl::Seconds(10)));
}

StallWatch::StallWatch(absl::Duration limit, std::function<Activity()> sample,
                       std::function<void(absl::Duration)> on_stall)
    : limit_(limit), sample_(std::move(sample)), on_stall_(std::move(on_stall)), thread_([this] { Run(); }) {}

StallWatch::~StallWatch() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    cv_.Signal();
  }
  thread_.join();
}

void StallWatch::Run() {
  const absl::Duration interval = std::min(limit_ / 4, absl::Milliseconds(250));
  StallDetector detector;
  absl::Time last = absl::Now();
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (!stop_) cv_.WaitWithTimeout(&mu_, interval);
      if (stop_) return;
    }
    const absl::Time now = absl::Now();
    const Activity activity = sample_();
    const absl::Duration stalled = detector.Observe(activity, now - last, 2 * interval);
    last = now;
    if (stalled < StallLimit(limit_, activity.longest)) continue;
    on_stall_(stalled);
    return;
  }
}

void EndProcessWithin(unsigned seconds) {
  std::signal(SIGALRM, [](int) {  // only what a signal handler may call
    constexpr char kText[] = "error: a thread stands still (engine_stall_ms), and what it holds keeps the log from saying more\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
    _exit(1);
  });
  alarm(seconds);
}

}  // namespace baton
