#include "router/request_log.h"

#include <utility>

namespace baton::router {

void RequestLog::Add(const std::string& request_id, const std::string& tenant, absl::Time arrived,
                     const absl::Status& status, const RequestStats& stats, uint64_t seed, absl::Duration emit) {
  if (stats.prompt_tokens == 0) return;
  auto request = std::make_shared<EndedRequest>(
      EndedRequest{request_id, tenant, arrived, status, MakeSummary(stats, seed), stats, emit});
  request->stats.itl_ms = {};
  std::shared_ptr<const EndedRequest> oldest;  // let go without the lock
  MutexLock lock(&mu_);
  requests_.push_back(std::move(request));
  if (requests_.size() <= max_requests_) return;
  oldest = std::move(requests_.front());
  requests_.pop_front();
}

std::vector<std::shared_ptr<const EndedRequest>> RequestLog::Latest(const std::string& tenant) const {
  std::vector<std::shared_ptr<const EndedRequest>> latest;
  MutexLock lock(&mu_);
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    if ((*it)->tenant == tenant) latest.push_back(*it);
  }
  return latest;
}

std::shared_ptr<const EndedRequest> RequestLog::Find(const std::string& request_id,
                                                     const std::string& tenant) const {
  MutexLock lock(&mu_);
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    if ((*it)->request_id == request_id && (*it)->tenant == tenant) return *it;
  }
  return nullptr;
}

}  // namespace baton::router
