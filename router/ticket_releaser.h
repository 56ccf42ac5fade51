// Gives tickets back to the prefill workers that issued them.
#ifndef BATON_ROUTER_TICKET_RELEASER_H_
#define BATON_ROUTER_TICKET_RELEASER_H_

#include "absl/time/time.h"
#include "common/mutex.h"
#include "router/request_lifecycle.h"
#include "router/router_metrics.h"
#include "router/worker_channels.h"

namespace baton::router {

// Thread-safe. Nothing is owned; everything outlives this.
class TicketReleaser {
 public:
  TicketReleaser(WorkerChannels* channels, RouterMetrics* metrics) : channels_(channels), metrics_(metrics) {}
  // Waits for calls that are under way (their deadline bounds it).
  ~TicketReleaser() { WaitUntilIdle(); }

  // Returns at once. The call is idempotent and the channel repeats it when the worker cannot be reached; a ticket that
  // still is not given back is freed by its lease.
  void Release(const ReleaseTicket& command);
  void WaitUntilIdle();

 private:
  struct Call;

  WorkerChannels* const channels_;
  RouterMetrics* const metrics_;
  Mutex mu_;
  CondVar cv_;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TICKET_RELEASER_H_
