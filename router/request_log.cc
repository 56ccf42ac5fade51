#include "router/request_log.h"

#include <utility>

namespace baton::router {

void RequestLog::Add(const std::string& request_id, absl::Time arrived, const absl::Status& status,
                     const RequestStats& stats, uint64_t seed, absl::Duration emit) {
  if (stats.prompt_tokens == 0) return;
  auto request = std::make_shared<EndedRequest>(
      EndedRequest{request_id, arrived, status, MakeSummary(stats, seed), stats, emit});
  request->stats.itl_ms = {};
  std::shared_ptr<const EndedRequest> oldest;  // let go without the lock
  MutexLock lock(&mu_);
  requests_.push_back(std::move(request));
  if (requests_.size() <= max_requests_) return;
  oldest = std::move(requests_.front());
  requests_.pop_front();
}

std::vector<std::shared_ptr<const EndedRequest>> RequestLog::Latest() const {
  MutexLock lock(&mu_);
  return {requests_.rbegin(), requests_.rend()};
}

std::shared_ptr<const EndedRequest> RequestLog::Find(const std::string& request_id) const {
  MutexLock lock(&mu_);
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    if ((*it)->request_id == request_id) return *it;
  }
  return nullptr;
}

}  // namespace baton::router
