// Carries out one request's life cycle: calls to workers, timers, the client's stream.
//
// Whatever happens becomes an input in a queue; whoever puts the first one in handles them all, one after another, and
// carries out the commands. So the life cycle sees one caller at a time, commands run in order, and no lock is held
// while gRPC is called.
#ifndef BATON_ROUTER_REQUEST_DRIVER_H_
#define BATON_ROUTER_REQUEST_DRIVER_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/tracing/tracer.h"
#include "router/client_stream.h"
#include "router/load_history.h"
#include "router/placement.h"
#include "router/request_lifecycle.h"
#include "router/request_log.h"
#include "router/request_table.h"
#include "router/router_metrics.h"
#include "router/timers.h"
#include "router/worker_link.h"

namespace baton::router {

// What all requests share. Nothing is owned; everything outlives every driver (RequestTable::WaitUntilGone).
struct DriverContext {
  RequestTable* table = nullptr;
  Placement* placement = nullptr;
  WorkerLink* workers = nullptr;
  RouterMetrics* metrics = nullptr;
  const TextMaker* text = nullptr;
  Clock* clock = nullptr;
  Timers* timers = Timers::Real();
  // Null: nobody is interested.
  RequestLog* log = nullptr;
  LoadHistory* load = nullptr;
  const tracing::Tracer* tracer = nullptr;
};

// Thread contract: thread-safe.
class RequestDriver : public std::enable_shared_from_this<RequestDriver> {
 public:
  using MakeClient = std::function<std::unique_ptr<ClientStream>(const std::shared_ptr<RequestDriver>&)>;

  // `key` names the request in the table and in logs. `make_client` is called at once; the driver owns what it gives.
  // A `pinned` request goes to those workers, past admission and policy, and nowhere else, and is not traced. `trace`: the
  // client's, if it gave one.
  static std::shared_ptr<RequestDriver> Create(const DriverContext* context, std::string key, absl::Time deadline,
                                               const MakeClient& make_client,
                                               std::optional<PlacedPair> pinned = std::nullopt,
                                               const std::optional<tracing::SpanContext>& trace = std::nullopt);

  // After the table has it; the deadline is watched from here on.
  void Admit(AdmittedRequest request);
  void Reject(absl::Status status);
  void Stop();
  // The client went away (or, as gRPC tells it in the same words, the deadline passed): the request ends.
  void ClientGone();
  // Breaks off calls to workers that outlived the request.
  void Cut();
  // Requests on that worker go elsewhere.
  void WorkerGone(const WorkerId& id, const std::string& why);

 private:
  struct Gone {
    WorkerId id;
    std::string why;
  };
  struct CutLegs {};
  struct Placed {
    uint32_t epoch = 0;
    absl::StatusOr<PlacedHolds> holds;
  };
  struct Item {
    std::variant<Input, Gone, CutLegs, Placed> what;
    absl::Time arrived;
  };

  RequestDriver(const DriverContext* context, std::string key, absl::Time deadline, std::optional<PlacedPair> pinned,
                const std::optional<tracing::SpanContext>& trace);

  void Post(Input input) { Enqueue({std::move(input), context_->clock->Now()}); }
  void Enqueue(Item item);
  void EnqueueAll(std::span<Item> items);
  // By whoever made it busy, until nothing is left.
  void Work();
  void Process(Item item);
  void WatchDeadline();
  void OnGone(const Gone& gone);
  void PlacePinned();
  void OnPlaced(Placed& placed);
  void HandleInput(Input input);
  void NoteStream(const Input& input);
  void NoteFirstToken();
  void NoteTokens();

  void Execute(AskPlacement& command);
  void Execute(StartPrefill& command);
  void Execute(StartDecode& command);
  void Execute(CancelPrefill& command);
  void Execute(CancelDecode& command);
  void Execute(UpdateDecode& command);
  void Execute(OfferHistory& command);
  void Execute(Wait& command);
  void Execute(Send& command);
  void Execute(Finish& command);

  void OnPrefillEvent(uint32_t epoch, const WorkerRef& worker, v1::PrefillEvent& event);
  void OnDecodeEvents(uint32_t epoch, const WorkerRef& worker, std::span<v1::DecodeEvent* const> events);
  void LogEnd(const absl::Status& status);
  void TraceEnd(const absl::Status& status) const;

  const RequestTable::Live live_;  // first, so that it goes last
  const DriverContext* const context_;
  const std::string key_;
  const uint64_t placement_id_;
  const absl::Time arrival_;
  const std::optional<PlacedPair> pinned_;
  const std::optional<tracing::SpanContext> client_trace_;
  // What workers get: this request's place in its trace, or the client's where this process traces nothing.
  const std::optional<tracing::SpanContext> trace_;
  std::unique_ptr<ClientStream> client_;

  Mutex mu_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;

  // Below: only by whoever is busy.
  RequestLifecycle lifecycle_;
  std::shared_ptr<WorkerCall> prefill_leg_, decode_leg_;  // null: not running
  WorkerRef prefill_worker_, decode_worker_;
  uint32_t prefill_epoch_ = 0, decode_epoch_ = 0;
  InFlightHold prefill_hold_, decode_hold_;
  absl::Time asked_;  // for a placement
  absl::Time placed_;
  absl::Duration forecast_ttft_;  // from placed_ on; zero: not known, or told already
  absl::Duration emit_;
  uint32_t tokens_noted_ = 0;
  size_t itl_noted_ = 0;
  int unflushed_ = 0;  // messages to the client
  std::unique_ptr<Timer> deadline_timer_, wait_timer_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_DRIVER_H_
