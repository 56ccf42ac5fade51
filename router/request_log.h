// The latest requests that ended, with the moments of their stations, for the console's journey. Never a word of a
// prompt or an answer, nor their token ids. Bounded: the oldest goes first.
//
// Thread contract: thread-safe.
#ifndef BATON_ROUTER_REQUEST_LOG_H_
#define BATON_ROUTER_REQUEST_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/inference.pb.h"
#include "router/request_stats.h"

namespace baton::router {

struct EndedRequest {
  std::string request_id;
  std::string tenant;
  absl::Time arrived;
  absl::Status status;
  v1::Summary summary;  // as the client got it, also when the request failed
  RequestStats stats;   // without itl_ms, which the summary and token_ms stand for
  absl::Duration emit;  // as RouterMetrics::Ended's
};

class RequestLog {
 public:
  explicit RequestLog(size_t max_requests = 256) : max_requests_(max_requests) {}

  // Requests that never got past the front door (no prompt tokens) are not kept.
  void Add(const std::string& request_id, const std::string& tenant, absl::Time arrived, const absl::Status& status,
           const RequestStats& stats, uint64_t seed, absl::Duration emit);
  // A tenant's own, the newest first.
  std::vector<std::shared_ptr<const EndedRequest>> Latest(const std::string& tenant) const;
  // Its latest of that id; null: unknown, or too long ago.
  std::shared_ptr<const EndedRequest> Find(const std::string& request_id, const std::string& tenant) const;

 private:
  const size_t max_requests_;
  mutable Mutex mu_;
  std::deque<std::shared_ptr<const EndedRequest>> requests_ ABSL_GUARDED_BY(mu_);  // the newest last
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_LOG_H_
