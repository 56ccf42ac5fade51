#include "router/placement.h"

namespace baton::router {

absl::StatusOr<PlacedHolds> Placement::Place(const PlacementNeed& need, bool needs_decode) {
  MutexLock lock(&mu_);
  const std::vector<WorkerSnapshot> workers = view_->Snapshot();
  const uint64_t counter = counter_++;
  const absl::StatusOr<WorkerSnapshot> prefill = PickPrefill(workers, need, counter);
  if (!prefill.ok()) return prefill.status();
  PlacedHolds placed;
  if (needs_decode) {
    // Before any prefill work is spent.
    const absl::StatusOr<WorkerSnapshot> decode = PickDecode(workers, need, counter);
    if (!decode.ok()) return decode.status();
    placed.pair.decode = {decode->id, decode->address};
    placed.decode = InFlightHold(view_, decode->id, need.prompt_tokens);
  }
  placed.pair.prefill = {prefill->id, prefill->address};
  placed.prefill = InFlightHold(view_, prefill->id, need.prompt_tokens);
  return placed;
}

absl::StatusOr<std::pair<WorkerRef, InFlightHold>> Placement::KeepDecode(const WorkerRef& preferred,
                                                                         const PlacementNeed& need) {
  MutexLock lock(&mu_);
  const std::vector<WorkerSnapshot> workers = view_->Snapshot();
  for (const WorkerSnapshot& w : workers) {
    if (w.id == preferred.id && w.state == WorkerState::kReady) return std::pair(preferred, InFlightHold());
  }
  const absl::StatusOr<WorkerSnapshot> decode = PickDecode(workers, need, counter_++);
  if (!decode.ok()) return decode.status();
  return std::pair(WorkerRef{decode->id, decode->address}, InFlightHold(view_, decode->id, need.prompt_tokens));
}

}  // namespace baton::router
