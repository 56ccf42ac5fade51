// Placing requests by the policy, one at a time, so that each decision sees the ones before it.
#ifndef BATON_ROUTER_PLACEMENT_H_
#define BATON_ROUTER_PLACEMENT_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "router/cluster_view.h"
#include "router/decision_log.h"
#include "router/pair_times.h"
#include "router/policy.h"
#include "router/request_lifecycle.h"

namespace baton::router {

// One request counted on one worker, until this goes. Movable.
class InFlightHold {
 public:
  InFlightHold() = default;
  InFlightHold(ClusterView* view, WorkerId id, const InFlightWork& work) : view_(view), id_(std::move(id)), work_(work) {
    view_->AddInFlight(id_, work_);
  }
  InFlightHold(InFlightHold&& other) noexcept { Swap(other); }
  InFlightHold& operator=(InFlightHold&& other) noexcept {
    InFlightHold old;
    old.Swap(*this);
    Swap(other);
    return *this;
  }
  ~InFlightHold() {
    if (view_ != nullptr) view_->RemoveInFlight(id_, work_);
  }
  const WorkerId& id() const { return id_; }

 private:
  void Swap(InFlightHold& other) {
    std::swap(view_, other.view_);
    std::swap(id_, other.id_);
    std::swap(work_, other.work_);
  }
  ClusterView* view_ = nullptr;
  WorkerId id_;
  InFlightWork work_;
};

struct PlacedHolds {
  PlacedPair pair;
  InFlightHold prefill, decode;
};

struct PlaceRequest {
  std::string request_id;
  uint32_t epoch = 1;
  PlacementNeed need;
  bool needs_decode = true;
  absl::Duration waited;  // so far, in the router
};

// Thread-safe.
class Placement {
 public:
  // Nothing is owned. `seed` is for tests; routers must not count in step.
  Placement(ClusterView* view, Clock* clock, const PolicyOptions& options, uint64_t seed = RandomU64() >> 1);

  // need.prefix_names of a prompt.
  std::vector<uint64_t> PrefixNames(absl::string_view tenant, std::span<const int32_t> prompt_token_ids) const;

  // Errors as the policy's. Without needs_decode the pair's decode side stays empty.
  absl::StatusOr<PlacedHolds> Place(const PlaceRequest& request);
  // `preferred` if it is still ready; else another one. The hold is empty in the first case (the caller has it).
  absl::StatusOr<std::pair<WorkerRef, InFlightHold>> KeepDecode(const WorkerRef& preferred, const PlacementNeed& need);

  // How a call to a worker ended otherwise than well, and what a hand-over took.
  void ReportFailure(const WorkerId& id, const absl::Status& status);
  void ReportTransfer(const WorkerId& prefill, const WorkerId& decode, uint64_t bytes, absl::Duration duration);
  void ReportTransferFailed(const WorkerId& prefill, const WorkerId& decode);

  absl::StatusOr<v1::PlacementExplanation> Explain(const std::string& request_id) const;
  // How many routers share the workers; with more than one, decisions compare a sample.
  void SetRouters(int routers);

 private:
  struct Pick {
    absl::StatusOr<Choice> choice = absl::UnknownError("");
    WorkerRef worker;
    InFlightWork work;
  };
  Pick PickOne(Role role, const PlacementNeed& need, const WorkerId* prefill) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Log(const PlaceRequest& request, const Pick& prefill, const Pick* decode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ClusterView* const view_;
  Clock* const clock_;
  DecisionLog log_;
  Mutex mu_;
  PolicyOptions options_ ABSL_GUARDED_BY(mu_);
  PairTimes pairs_ ABSL_GUARDED_BY(mu_);
  uint64_t seed_ ABSL_GUARDED_BY(mu_);
  std::vector<uint16_t> depth_ ABSL_GUARDED_BY(mu_);  // of the running PickOne
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_H_
