// Whom to ask: a pure function of a snapshot of the cluster. The simulator runs this very code.
//
// Prefill: the least prompt tokens ahead. Decode: room for the prompt first, then the fewest sequences. Workers that
// are draining or lost are never chosen; suspect ones, and those the request has already failed on, only when no other
// is left. Ties go round-robin by the caller's counter.
#ifndef BATON_ROUTER_POLICY_H_
#define BATON_ROUTER_POLICY_H_

#include <cstdint>
#include <set>
#include <span>

#include "absl/status/statusor.h"
#include "router/cluster_view.h"

namespace baton::router {

struct PlacementNeed {
  uint64_t prompt_tokens = 0;
  uint64_t total_tokens = 0;  // prompt and output of one choice: what a worker's max_context must hold
  std::set<WorkerId> avoid;   // chosen only when there is no other
  bool only_others = false;   // not even then
};

// The chosen worker. UNAVAILABLE names the missing pool, the states of its workers, and what to start.
// FAILED_PRECONDITION when workers are ready but none takes total_tokens.
absl::StatusOr<WorkerSnapshot> PickPrefill(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                           uint64_t counter);
absl::StatusOr<WorkerSnapshot> PickDecode(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                          uint64_t counter);

}  // namespace baton::router

#endif  // BATON_ROUTER_POLICY_H_
