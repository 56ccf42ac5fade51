#include "router/decision_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::router {

void DecisionLog::Add(const std::string& request_id, v1::PlacementDecision decision, absl::Time now) {
  MutexLock lock(&mu_);
  const auto [it, fresh] = entries_.try_emplace(request_id);
  Entry& entry = it->second;
  // An id may come back; attempt 1 begins a new story.
  if (decision.epoch() <= 1) entry = Entry{};
  entry.explanation.set_request_id(request_id);
  if (entry.explanation.decisions_size() >= kMaxDecisions) {
    entry.explanation.mutable_decisions()->DeleteSubrange(0, 1);
    entry.times.pop_front();
  }
  *entry.explanation.add_decisions() = std::move(decision);
  entry.times.push_back(now);
  if (fresh) order_.push_back(request_id);
  if (order_.size() > max_requests_) {
    entries_.erase(order_.front());
    order_.pop_front();
  }
}

absl::StatusOr<v1::PlacementExplanation> DecisionLog::Find(const std::string& request_id, absl::Time now) const {
  MutexLock lock(&mu_);
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no placement of request ", request_id.substr(0, 128),
                                            " is known here; the latest ", max_requests_, " requests are kept"));
  }
  v1::PlacementExplanation out = it->second.explanation;
  for (int i = 0; i < out.decisions_size(); ++i) {
    out.mutable_decisions(i)->set_age_s(absl::ToDoubleSeconds(now - it->second.times[i]));
  }
  return out;
}

}  // namespace baton::router
