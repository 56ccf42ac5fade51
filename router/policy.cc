#include "router/policy.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

// Compared from the left, smaller is better.
using Cost = std::array<uint64_t, 4>;

Cost PrefillCost(const WorkerSnapshot& w, const PlacementNeed& need) {
  return {need.avoid.count(w.id), w.suspect, w.waiting_tokens + w.in_flight_tokens, w.in_flight};
}

Cost DecodeCost(const WorkerSnapshot& w, const PlacementNeed& need) {
  const uint64_t block_size = std::max<uint64_t>(w.block_size, 1);
  const uint64_t blocks = need.prompt_tokens / block_size + 1;  // the prompt's and the first token's
  // The report lags by a heartbeat and the router's own count does not, so the larger of the two is the better guess.
  const uint64_t sequences = std::max<uint64_t>(uint64_t{w.running} + w.waiting, w.in_flight);
  return {need.avoid.count(w.id), w.suspect, w.free_blocks < blocks, sequences};
}

absl::Status NoWorker(std::span<const WorkerSnapshot> workers, Role role) {
  int draining = 0, lost = 0;
  for (const WorkerSnapshot& w : workers) {
    if (w.role != role) continue;
    draining += w.state == WorkerState::kDraining;
    lost += w.state == WorkerState::kLost;
  }
  return absl::UnavailableError(absl::StrCat("no ", Name(role), " worker is ready (", draining, " draining, ", lost,
                                             " lost); start one with `", Name(role),
                                             "_worker --router HOST:PORT`, or a whole cluster with `baton up`"));
}

absl::StatusOr<WorkerSnapshot> Pick(std::span<const WorkerSnapshot> workers, Role role, const PlacementNeed& need,
                                    uint64_t counter, Cost (*cost)(const WorkerSnapshot&, const PlacementNeed&)) {
  std::vector<const WorkerSnapshot*> best;
  Cost least{};
  bool too_small = false;
  for (const WorkerSnapshot& w : workers) {
    if (w.role != role || w.state != WorkerState::kReady) continue;
    if (need.only_others && need.avoid.count(w.id) > 0) continue;
    if (w.max_context < need.total_tokens) {
      too_small = true;
      continue;
    }
    const Cost c = cost(w, need);
    if (best.empty() || c < least) {
      least = c;
      best.assign(1, &w);
    } else if (c == least) {
      best.push_back(&w);
    }
  }
  if (!best.empty()) return *best[counter % best.size()];
  if (too_small) {
    return absl::FailedPreconditionError(absl::StrCat("no ready ", Name(role), " worker takes ", need.total_tokens,
                                                      " tokens; start one with a larger --max-context"));
  }
  return NoWorker(workers, role);
}

}  // namespace

absl::StatusOr<WorkerSnapshot> PickPrefill(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                           uint64_t counter) {
  return Pick(workers, Role::kPrefill, need, counter, PrefillCost);
}

absl::StatusOr<WorkerSnapshot> PickDecode(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                          uint64_t counter) {
  return Pick(workers, Role::kDecode, need, counter, DecodeCost);
}

}  // namespace baton::router
