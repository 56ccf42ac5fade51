// The calls to workers over gRPC: a request's two long ones, what a running Decode still needs, and history for a
// prefill worker.
#ifndef BATON_ROUTER_WORKER_CALLS_H_
#define BATON_ROUTER_WORKER_CALLS_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "router/worker_channels.h"
#include "router/worker_link.h"

namespace baton::router {

// Thread-safe. Nothing is owned; everything outlives this.
class WorkerCalls final : public WorkerLink {
 public:
  explicit WorkerCalls(WorkerChannels* channels) : channels_(channels) {}
  // Waits for short calls that are under way (their deadline bounds it).
  ~WorkerCalls() override { WaitUntilIdle(); }

  // Callbacks run on gRPC's threads.
  std::shared_ptr<WorkerCall> Prefill(StartPrefill command, absl::Time deadline,
                                      std::function<void(v1::PrefillEvent&)> on_event, OnEnd on_end) override;
  std::shared_ptr<WorkerCall> Decode(StartDecode command, absl::Time deadline,
                                     OnDecodeEvents on_events, OnEnd on_end) override;
  void Update(const UpdateDecode& command, absl::Time deadline, OnEnd failed) override;
  void Offer(const OfferHistory& command) override;
  // Asks a worker to finish what it has and leave.
  void Drain(const WorkerRef& worker, bool decode, OnEnd done);
  // Asks a worker (`decode`: of that role now) to join again in the other role.
  void ChangeRole(const WorkerRef& worker, bool decode, OnEnd done);
  void WaitUntilIdle();

 private:
  struct Update_;
  struct Offer_;
  struct Drain_;
  struct ChangeRole_;

  void Begin();
  void End();

  WorkerChannels* const channels_;
  Mutex mu_;
  CondVar cv_;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_CALLS_H_
