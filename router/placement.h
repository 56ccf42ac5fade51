// Placing requests by the policy, one at a time, so that each decision sees the ones before it.
#ifndef BATON_ROUTER_PLACEMENT_H_
#define BATON_ROUTER_PLACEMENT_H_

#include <utility>

#include "absl/status/statusor.h"
#include "router/cluster_view.h"
#include "router/policy.h"
#include "router/request_lifecycle.h"

namespace baton::router {

// One request counted on one worker, until this goes. Movable.
class InFlightHold {
 public:
  InFlightHold() = default;
  InFlightHold(ClusterView* view, WorkerId id, uint64_t prompt_tokens)
      : view_(view), id_(std::move(id)), prompt_tokens_(prompt_tokens) {
    view_->AddInFlight(id_, prompt_tokens_);
  }
  InFlightHold(InFlightHold&& other) noexcept { Swap(other); }
  InFlightHold& operator=(InFlightHold&& other) noexcept {
    InFlightHold old;
    old.Swap(*this);
    Swap(other);
    return *this;
  }
  ~InFlightHold() {
    if (view_ != nullptr) view_->RemoveInFlight(id_, prompt_tokens_);
  }
  const WorkerId& id() const { return id_; }

 private:
  void Swap(InFlightHold& other) {
    std::swap(view_, other.view_);
    std::swap(id_, other.id_);
    std::swap(prompt_tokens_, other.prompt_tokens_);
  }
  ClusterView* view_ = nullptr;
  WorkerId id_;
  uint64_t prompt_tokens_ = 0;
};

struct PlacedHolds {
  PlacedPair pair;
  InFlightHold prefill, decode;
};

// Thread-safe.
class Placement {
 public:
  // `view` is not owned.
  explicit Placement(ClusterView* view) : view_(view) {}

  // Errors as the policy's. Without needs_decode the pair's decode side stays empty.
  absl::StatusOr<PlacedHolds> Place(const PlacementNeed& need, bool needs_decode);
  // `preferred` if it is still ready; else another one. The hold is empty in the first case (the caller has it).
  absl::StatusOr<std::pair<WorkerRef, InFlightHold>> KeepDecode(const WorkerRef& preferred, const PlacementNeed& need);
  void ReportFailure(const WorkerId& id) { view_->ReportFailure(id); }

 private:
  ClusterView* const view_;
  Mutex mu_;
  uint64_t counter_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_H_
