// The latest placements, for `baton status --why ID`. Bounded; the oldest request goes first.
//
// Thread contract: thread-safe.
#ifndef BATON_ROUTER_DECISION_LOG_H_
#define BATON_ROUTER_DECISION_LOG_H_

#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/cluster.pb.h"

namespace baton::router {

class DecisionLog {
 public:
  explicit DecisionLog(size_t max_requests = 4096) : max_requests_(max_requests) {}

  void Add(const std::string& request_id, v1::PlacementDecision decision, absl::Time now);
  // NOT_FOUND: unknown, or too long ago.
  absl::StatusOr<v1::PlacementExplanation> Find(const std::string& request_id, absl::Time now) const;

 private:
  static constexpr int kMaxDecisions = 8;  // of one request
  struct Entry {
    v1::PlacementExplanation explanation;
    std::deque<absl::Time> times;  // of its decisions
  };
  const size_t max_requests_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_DECISION_LOG_H_
