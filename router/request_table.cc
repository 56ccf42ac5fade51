#include "router/request_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "router/request_driver.h"

namespace baton::router {

absl::Status RequestTable::Add(const std::string& key, const std::shared_ptr<RequestDriver>& driver) {
  MutexLock lock(&mu_);
  if (running_.size() >= max_running_) {
    return WithReason(WithRetryAfter(absl::ResourceExhaustedError(
                                         absl::StrCat(max_running_,
                                                      " requests are in flight, which is the limit (max_queue); "
                                                      "try again in a second")),
                                     absl::Seconds(1)),
                      "QUEUE_FULL");
  }
  if (!running_.emplace(key, Entry{driver.get(), driver}).second) {
    return absl::AlreadyExistsError("a request with this request_id is running; choose another, or leave it empty");
  }
  return absl::OkStatus();
}

void RequestTable::End(const std::string& key, const RequestDriver* driver) {
  MutexLock lock(&mu_);
  const auto it = running_.find(key);
  if (it == running_.end() || it->second.id != driver) return;  // it was refused
  std::erase_if(ended_, [](const std::weak_ptr<RequestDriver>& d) { return d.expired(); });
  ended_.push_back(it->second.driver);
  running_.erase(it);
  if (running_.empty()) cv_.SignalAll();
}

size_t RequestTable::running() const {
  MutexLock lock(&mu_);
  return running_.size();
}

std::vector<std::shared_ptr<RequestDriver>> RequestTable::Running() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<RequestDriver>> out;
  for (const auto& [key, entry] : running_) {
    if (std::shared_ptr<RequestDriver> driver = entry.driver.lock()) out.push_back(std::move(driver));
  }
  return out;
}

bool RequestTable::WaitUntilNoneRuns(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&mu_);
  while (!running_.empty()) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    cv_.WaitWithTimeout(&mu_, left);
  }
  return true;
}

void RequestTable::WaitUntilGone() {
  std::vector<std::weak_ptr<RequestDriver>> ended;
  {
    MutexLock lock(&mu_);
    ended = ended_;
  }
  for (const auto& weak : ended) {
    if (const std::shared_ptr<RequestDriver> driver = weak.lock()) driver->Cut();
  }
  MutexLock lock(&mu_);
  while (live_ > 0) cv_.Wait(&mu_);
}

void RequestTable::Count(int change) {
  MutexLock lock(&mu_);
  live_ += change;
  if (live_ == 0) cv_.SignalAll();
}

}  // namespace baton::router
