// Which worker should change its role (setting auto_roles): when one pool is overloaded and the other could spare a worker.
//
// A pool's load is what its next request would feel: for prefill the time that the prompts ahead take, for decode how full
// its KV blocks and batches are. The change must be wanted without interruption for a while, and is only wanted when the
// pool that gives would then still be well below what makes it take: the way there and the way back are apart, so that
// pools do not chase each other. One worker at a time; the next change waits until that one serves again and as long again
// after. A pool keeps its last worker. Workers that have not measured their steps yet are no evidence.
//
// Thread contract: thread-compatible. Time comes from the caller only.
#ifndef BATON_ROUTER_ROLE_BALANCER_H_
#define BATON_ROUTER_ROLE_BALANCER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "router/cluster_view.h"

namespace baton::router {

struct RoleBalancerOptions {
  absl::Duration sustain = absl::Seconds(10);   // the setting role_dwell_ms
  absl::Duration backlog = absl::Seconds(1);    // of prompts ahead of a new one: prefill is overloaded above it
  double fullness = 0.9;                        // decode is overloaded above it
  double spare = 0.7;                           // of these limits, that the pool which gives keeps below
  absl::Duration give_up = absl::Minutes(2);    // on a worker that does not come back
};

// What is compared with the limits. Negative: not known.
struct PoolLoads {
  double backlog_s = -1;  // prefill
  double fullness = -1;   // decode, in [0, 1]: of KV blocks or batch places, whichever is fuller
  int prefill = 0, decode = 0;  // ready workers
};
// `queued_tokens`: of prompts that wait in the router.
PoolLoads LoadsOf(std::span<const WorkerSnapshot> workers, uint64_t queued_tokens);

struct RoleChange {
  WorkerId worker;
  Role from = Role::kDecode;
  std::string address;
  std::string why;  // for people
};

class RoleBalancer {
 public:
  explicit RoleBalancer(const RoleBalancerOptions& options) : options_(options) {}

  // Call it a few times a second. A change that is returned counts as under way until the worker is ready in its new role.
  std::optional<RoleChange> Tick(std::span<const WorkerSnapshot> workers, uint64_t queued_tokens, absl::Time now);
  // The worker refused: nothing is under way.
  void Refused(absl::Time now);

 private:
  // Whose worker should go, if any.
  std::optional<Role> Wanted(const PoolLoads& loads) const;
  bool UnderWay(std::span<const WorkerSnapshot> workers, absl::Time now);

  const RoleBalancerOptions options_;
  std::optional<Role> wanted_;
  absl::Time since_;  // wanted_, without interruption
  absl::Time not_before_ = absl::InfinitePast();
  std::optional<RoleChange> pending_;
  absl::Time pending_since_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROLE_BALANCER_H_
