// Admission and policy together over the view of the cluster: a request that asks is refused, placed, or waits until
// something changes. One decision at a time, so that each sees the ones before it.
#ifndef BATON_ROUTER_PLACEMENT_H_
#define BATON_ROUTER_PLACEMENT_H_

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "router/admission.h"
#include "router/cluster_view.h"
#include "router/decision_log.h"
#include "router/pair_times.h"
#include "router/policy.h"
#include "router/request_lifecycle.h"
#include "router/serving_mode.h"

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
  absl::Duration ttft;  // forecast, from now on; zero: not known
};

struct PlaceRequest {
  std::string request_id;
  uint32_t epoch = 1;
  PlacementNeed need;
  bool needs_decode = true;
  std::string tenant;
  Priority priority = Priority::kStandard;
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();
};

struct PlacementOptions {
  ServingMode mode = ServingMode::kDisaggregated;
  PolicyOptions policy;
  AdmissionOptions admission;
};

struct QueueState {
  uint64_t tokens = 0;
  std::array<size_t, kNumPriorities> requests{};
};

// Thread-safe. Callbacks run without a lock held, on the thread of whatever call found out.
class Placement {
 public:
  using Done = std::function<void(absl::StatusOr<PlacedHolds>)>;

  // Nothing is owned. `seed` is for tests; routers must not count in step.
  Placement(ClusterView* view, Clock* clock, const PlacementOptions& options, uint64_t seed = RandomU64() >> 1);

  // For Ask and Leave: one for each request.
  uint64_t NewId() { return next_id_++; }
  // Calls back once, at once or later: with a pair, with a refusal (as Admission's; epoch 1 only), with the policy's
  // status when waiting is of no use or has been too long. Waiting is of no use when no worker of a role has ever been
  // there, none could ever take the request, or others are asked for and there are none.
  void Ask(uint64_t id, PlaceRequest request, Done done);
  // The request is over. A callback that has not run does not run any more, unless it is about to.
  void Leave(uint64_t id);
  // Workers or what is in flight on them changed: somebody may find room now.
  void Changed();
  // Changed, and ends waits that were too long. Call it every few milliseconds.
  void Tick();
  QueueState queue() const;
  const Promise& promise(Priority priority) const { return promises_[static_cast<size_t>(priority)]; }

  // need.prefix_names of a prompt.
  std::vector<uint64_t> PrefixNames(absl::string_view tenant, std::span<const int32_t> prompt_token_ids) const;

  // At once or not at all, past the queue. Errors as the policy's. The pair's prefill side stays empty when the decode
  // worker is to compute the prompt, the decode side when nothing is to be decoded.
  absl::StatusOr<PlacedHolds> Place(const PlaceRequest& request);

  // How a call to a worker ended otherwise than well, and what a hand-over took.
  void ReportFailure(const WorkerId& id, const absl::Status& status);
  void ReportTransfer(const WorkerId& prefill, const WorkerId& decode, uint64_t bytes, absl::Duration duration);
  void ReportTransferFailed(const WorkerId& prefill, const WorkerId& decode);
  // Of a first placement: PlacedHolds.ttft, and how long the first token took from then on.
  void ReportFirstToken(absl::Duration forecast, absl::Duration took);

  absl::StatusOr<v1::PlacementExplanation> Explain(const std::string& request_id) const;
  // How many routers share the workers; with more than one, decisions compare a sample.
  void SetRouters(int routers);

 private:
  // One worker, of those that one side of a request was chosen from.
  struct Pick {
    absl::StatusOr<Choice> choice = absl::UnknownError("");
    WorkerRef worker;
    uint64_t blocks = 0;  // that prompt and expected output take there
  };
  // Both ways of one request. What is not possible has no forecast, and a status that says why.
  struct Ways {
    Pick prefill, decode;  // remote
    Pick local;
    std::optional<ModeForecast> remote_forecast, local_forecast;
    bool take_local = false;
    double least_us = 0;  // Forecast.least; only where room is not asked for
    absl::Status status;  // of the way that is taken: not OK when that has no room now, or neither is possible
  };
  Ways Compare(const PlaceRequest& request, bool check_room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CompareRemote(std::span<const WorkerSnapshot> workers, const PlaceRequest& request, const PolicyOptions& options,
                     uint64_t seed, Ways* ways) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LatencyLeft LeftOf(const PlaceRequest& request) const;
  struct Waiting {
    PlaceRequest request;
    Done done;
    absl::Status why;  // it waits
  };
  // Not OK: it would come later than its class was promised, or than its deadline, though it was admitted. Only of a first
  // placement.
  absl::Status CheckPromise(const PlaceRequest& request, const Ways& ways) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PlacedHolds> Hold(const PlaceRequest& request, const Ways& ways) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Forecast ForecastFor(const PlaceRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WorthWaiting(const PlaceRequest& request, const absl::Status& status) const;
  void Log(const PlaceRequest& request, const Ways& ways) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ClusterView* const view_;
  Clock* const clock_;
  const ServingMode mode_;
  const std::array<Promise, kNumPriorities> promises_;
  std::atomic<uint64_t> next_id_{1};
  DecisionLog log_;
  mutable Mutex mu_;
  Admission admission_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool offering_ ABSL_GUARDED_BY(mu_) = false;  // some thread does; what changes meanwhile it looks at once more
  bool again_ ABSL_GUARDED_BY(mu_) = false;
  PolicyOptions options_ ABSL_GUARDED_BY(mu_);
  PairTimes pairs_ ABSL_GUARDED_BY(mu_);
  uint64_t seed_ ABSL_GUARDED_BY(mu_);
  std::vector<uint16_t> depth_ ABSL_GUARDED_BY(mu_);  // of the running Compare
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_H_
