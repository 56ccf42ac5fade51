// The seam between requests and what carries their calls to workers: gRPC (worker_calls.h), or a simulated network.
#ifndef BATON_ROUTER_WORKER_LINK_H_
#define BATON_ROUTER_WORKER_LINK_H_

#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "router/request_lifecycle.h"

namespace baton::router {

// One running call with a stream of events. Letting go of it does not end it.
class WorkerCall {
 public:
  virtual ~WorkerCall() = default;
  // Any thread, any time.
  virtual void Cancel() = 0;
};

// Thread-safe. Every call ends, at its deadline at the latest: `on_end` runs last and exactly once, and neither it nor
// `on_event` (`on_events`) may block. A worker is asked as (name, incarnation): no call meets another incarnation.
class WorkerLink {
 public:
  using OnEnd = std::function<void(absl::Status)>;
  // What came at once, in order.
  using OnDecodeEvents = std::function<void(std::span<v1::DecodeEvent* const>)>;

  virtual ~WorkerLink() = default;
  virtual std::shared_ptr<WorkerCall> Prefill(StartPrefill command, absl::Time deadline,
                                              std::function<void(v1::PrefillEvent&)> on_event, OnEnd on_end) = 0;
  virtual std::shared_ptr<WorkerCall> Decode(StartDecode command, absl::Time deadline,
                                             OnDecodeEvents on_events, OnEnd on_end) = 0;
  // Returns at once; `failed` runs unless the worker took the update. That the decode does not run there any more is
  // ABORTED: whatever it was for must be done again.
  virtual void Update(const UpdateDecode& command, absl::Time deadline, OnEnd failed) = 0;
  // Returns at once. Nobody waits for the answer: without it the next turn computes more, that is all.
  virtual void Offer(const OfferHistory& command) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_LINK_H_
