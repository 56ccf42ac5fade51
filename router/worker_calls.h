// The short calls to workers beside a request's two long ones: what a running Decode still needs, and history that a
// prefill worker may have.
#ifndef BATON_ROUTER_WORKER_CALLS_H_
#define BATON_ROUTER_WORKER_CALLS_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "router/request_lifecycle.h"
#include "router/worker_channels.h"

namespace baton::router {

// Thread-safe. Nothing is owned; everything outlives this.
class WorkerCalls {
 public:
  explicit WorkerCalls(WorkerChannels* channels) : channels_(channels) {}
  // Waits for calls that are under way (their deadline bounds it).
  ~WorkerCalls() { WaitUntilIdle(); }

  // Returns at once; `failed` runs on gRPC's thread unless the worker took the update. That the decode does not run there
  // any more is ABORTED: whatever it was for must be done again.
  void Update(const UpdateDecode& command, absl::Time deadline, std::function<void(absl::Status)> failed);
  // Returns at once. Nobody waits for the answer: without it the next turn computes more, that is all.
  void Offer(const OfferHistory& command);
  void WaitUntilIdle();

 private:
  struct Update_;
  struct Offer_;

  void Begin();
  void End();

  WorkerChannels* const channels_;
  Mutex mu_;
  CondVar cv_;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_CALLS_H_
