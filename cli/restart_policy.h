// When a process that died is started again: at once the first time, then ever later, and not at all when it keeps
// dying.
#ifndef BATON_CLI_RESTART_POLICY_H_
#define BATON_CLI_RESTART_POLICY_H_

#include <algorithm>
#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace baton::cli {

// Pure: told the time, says how long to wait.
class RestartPolicy {
 public:
  static constexpr int kMaxDeaths = 5;  // within kWindow
  static absl::Duration Window() { return absl::Minutes(2); }

  // A death at `now`: the pause before the next start (0.25 s, doubling to 4 s), or nullopt to give up.
  std::optional<absl::Duration> OnDeath(absl::Time now) {
    while (!deaths_.empty() && now - deaths_.front() > Window()) deaths_.pop_front();
    deaths_.push_back(now);
    if (static_cast<int>(deaths_.size()) > kMaxDeaths) return std::nullopt;
    const int doublings = static_cast<int>(deaths_.size()) - 1;
    return std::min(absl::Seconds(4), absl::Milliseconds(250) * (1 << doublings));
  }

  bool any() const { return !deaths_.empty(); }

 private:
  std::deque<absl::Time> deaths_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_RESTART_POLICY_H_
