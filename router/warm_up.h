// A worker that has joined gets requests only once a real generation through it has passed: a few tokens, by the way that
// requests take (prefill worker, hand-over, decode worker; or the decode worker alone, where that is how prompts are
// computed). What is broken in a worker, or between two, then meets no client. All these generations are the same one,
// so all must give the same tokens.
#ifndef BATON_ROUTER_WARM_UP_H_
#define BATON_ROUTER_WARM_UP_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "router/cluster_view.h"
#include "router/request_driver.h"
#include "router/serving_mode.h"

namespace baton::router {

// Thread contract: Tick from one thread; what it starts goes on on gRPC's threads.
class WarmUp {
 public:
  // `shared` is what requests share; table and metrics are not used, so that nobody counts these generations. Nothing is
  // owned; all outlives this. `metrics` gets baton_warm_ups_total.
  WarmUp(ServingMode mode, ClusterView* view, const DriverContext& shared, Metrics* metrics);
  // Breaks off what runs.
  ~WarmUp();

  // Starts what is due. Call it every few milliseconds.
  void Tick();

 private:
  class Client;
  struct Attempt {
    bool running = false;
    int failures = 0;
    absl::Time due = absl::InfinitePast();
  };

  // The pair to try for `worker`; nullopt: there is no partner yet.
  std::optional<PlacedPair> PairFor(const WorkerSnapshot& worker, const std::vector<WorkerSnapshot>& workers, int turn) const;
  void Begin(const WorkerId& worker, const PlacedPair& pair);
  void End(const WorkerId& worker, const PlacedPair& pair, absl::StatusOr<std::vector<int32_t>> tokens);

  const ServingMode mode_;
  ClusterView* const view_;
  Metrics* const metrics_;
  Metrics uncounted_;
  RouterMetrics uncounted_metrics_;
  RequestTable table_;
  DriverContext context_;
  uint64_t next_ = 0;  // Tick's
  Mutex mu_;
  std::map<WorkerId, Attempt> attempts_ ABSL_GUARDED_BY(mu_);
  std::vector<int32_t> expected_ ABSL_GUARDED_BY(mu_);  // by the first that passed; forgotten when no worker is left
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WARM_UP_H_
