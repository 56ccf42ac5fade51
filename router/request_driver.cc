#include "router/request_driver.h"

#include <utility>

#include "common/logging.h"
#include "common/status.h"
#include "router/request_trace.h"

namespace baton::router {
namespace {

std::optional<tracing::SpanContext> TraceOf(const tracing::Tracer* tracer, bool pinned,
                                            const std::optional<tracing::SpanContext>& client) {
  if (tracer == nullptr) return client;
  tracing::SpanContext own = tracer->Begin(client);
  if (pinned) own.sampled = false;  // and workers hear so
  return own;
}

std::optional<Input> InputOf(uint32_t epoch, const WorkerRef& worker, v1::DecodeEvent& event) {
  switch (event.event_case()) {
    case v1::DecodeEvent::kReserved:
      return Input{Event::kReserved, epoch, worker, std::move(*event.mutable_reserved())};
    case v1::DecodeEvent::kFetched:
      return Input{Event::kFetched, epoch, worker, std::move(*event.mutable_fetched())};
    case v1::DecodeEvent::kToken:
      return Input{Event::kDecodeToken, epoch, worker, std::move(*event.mutable_token())};
    case v1::DecodeEvent::kPrefilled:
      return Input{Event::kLocalPrefilled, epoch, worker, std::move(*event.mutable_prefilled())};
    case v1::DecodeEvent::kDone:
      return Input{Event::kDecodeDone, epoch, worker, std::move(*event.mutable_done())};
    case v1::DecodeEvent::kInFeed:  // the call's own
    case v1::DecodeEvent::EVENT_NOT_SET:
      break;
  }
  return std::nullopt;
}

constexpr int kFlushAt = 16;  // messages to the client, at the latest

}  // namespace

std::shared_ptr<RequestDriver> RequestDriver::Create(const DriverContext* context, std::string key,
                                                     absl::Time deadline, const MakeClient& make_client,
                                                     std::optional<PlacedPair> pinned,
                                                     const std::optional<tracing::SpanContext>& trace) {
  std::shared_ptr<RequestDriver> driver(
      new RequestDriver(context, std::move(key), deadline, std::move(pinned), trace));
  driver->client_ = make_client(driver);
  return driver;
}

RequestDriver::RequestDriver(const DriverContext* context, std::string key, absl::Time deadline,
                             std::optional<PlacedPair> pinned, const std::optional<tracing::SpanContext>& trace)
    : live_(context->table),
      context_(context),
      key_(std::move(key)),
      placement_id_(context->placement->NewId()),
      arrival_(context->clock->Now()),
      pinned_(std::move(pinned)),
      client_trace_(trace),
      trace_(TraceOf(context->tracer, pinned_.has_value(), trace)),
      lifecycle_(deadline, context->text, context->clock) {
  context_->metrics->Started();
}

void RequestDriver::Admit(AdmittedRequest request) { Post({Event::kAdmitted, 0, {}, std::move(request)}); }
void RequestDriver::Reject(absl::Status status) { Post({Event::kRejected, 0, {}, std::move(status)}); }
void RequestDriver::Stop() { Post({Event::kStop, 0, {}, {}}); }

void RequestDriver::Cut() { Enqueue({CutLegs{}, context_->clock->Now()}); }

void RequestDriver::WorkerGone(const WorkerId& id, const std::string& why) {
  Enqueue({Gone{id, why}, context_->clock->Now()});
}

void RequestDriver::ClientGone() {
  // gRPC tells of a passed deadline as of a cancellation.
  const bool late = context_->clock->Now() >= lifecycle_.deadline();
  Post({late ? Event::kDeadline : Event::kClientGone, 0, {}, {}});
}

void RequestDriver::Enqueue(Item item) { EnqueueAll({&item, 1}); }

void RequestDriver::EnqueueAll(std::span<Item> items) {
  {
    MutexLock lock(&mu_);
    for (Item& item : items) items_.push_back(std::move(item));
    if (busy_) return;
    busy_ = true;
  }
  Work();
}

void RequestDriver::Work() {
  const std::shared_ptr<RequestDriver> alive = shared_from_this();  // an input may drop the last other reference
  while (true) {
    std::optional<Item> next;
    {
      MutexLock lock(&mu_);
      if (!items_.empty()) {
        next = std::move(items_.front());
        items_.pop_front();
      } else if (unflushed_ == 0) {
        busy_ = false;
        return;
      }
    }
    if (next.has_value()) Process(*std::move(next));
    // What came at once may leave at once, and does not wait for what comes meanwhile.
    if (unflushed_ >= kFlushAt || (!next.has_value() && unflushed_ > 0)) {
      unflushed_ = 0;
      client_->Flush();
    }
  }
}

void RequestDriver::Process(Item item) {
  if (Placed* placed = std::get_if<Placed>(&item.what)) return OnPlaced(*placed);
  if (const Gone* gone = std::get_if<Gone>(&item.what)) return OnGone(*gone);
  if (std::holds_alternative<CutLegs>(item.what)) {
    if (prefill_leg_ != nullptr) prefill_leg_->Cancel();
    if (decode_leg_ != nullptr) decode_leg_->Cancel();
    return;
  }
  Input& input = std::get<Input>(item.what);
  if (input.event == Event::kAdmitted && lifecycle_.state() == State::kReceived) WatchDeadline();
  const bool token = input.event == Event::kPrefillToken || input.event == Event::kDecodeToken;
  NoteStream(input);
  HandleInput(std::move(input));
  if (token) emit_ += context_->clock->Now() - item.arrived;
  NoteFirstToken();
  NoteTokens();
}

void RequestDriver::WatchDeadline() {
  // Not before it is admitted: a request that ended before it was in the table would stay in it for ever.
  const std::weak_ptr<RequestDriver> weak = shared_from_this();
  deadline_timer_ = context_->timers->After(lifecycle_.deadline() - context_->clock->Now(), [weak] {
    const std::shared_ptr<RequestDriver> alive = weak.lock();
    if (alive != nullptr) alive->Post({Event::kDeadline, 0, {}, {}});
  });
}

void RequestDriver::NoteFirstToken() {
  if (forecast_ttft_ == absl::ZeroDuration() || lifecycle_.stats().completion_tokens == 0) return;
  context_->placement->ReportFirstToken(std::exchange(forecast_ttft_, absl::ZeroDuration()), context_->clock->Now() - placed_);
}

void RequestDriver::NoteTokens() {
  const RequestStats& stats = lifecycle_.stats();
  if (context_->load == nullptr || stats.completion_tokens == tokens_noted_) return;
  const absl::Time now = context_->clock->Now();
  if (tokens_noted_ == 0) context_->load->FirstToken(now, stats.ttft, stats.prompt_tokens);
  context_->load->Tokens(now, stats.completion_tokens - tokens_noted_, stats.itl_ms.data() + itl_noted_,
                         stats.itl_ms.size() - itl_noted_);
  tokens_noted_ = stats.completion_tokens;
  itl_noted_ = stats.itl_ms.size();
}

void RequestDriver::HandleInput(Input input) {
  std::vector<Command> commands;
  lifecycle_.Handle(std::move(input), &commands);
  for (Command& command : commands) {
    std::visit([this](auto& c) { Execute(c); }, command);
  }
}

void RequestDriver::NoteStream(const Input& input) {
  const bool failed = input.event == Event::kPrefillFailed || input.event == Event::kDecodeFailed;
  if (failed && input.epoch == lifecycle_.epoch() && Lookup(lifecycle_.state(), input.event) == Action::kFailOver) {
    const absl::Status* status = std::get_if<absl::Status>(&input.payload);
    if (status != nullptr) context_->placement->ReportFailure(input.worker.id, *status);
    const bool moving = lifecycle_.state() == State::kPrefilling || lifecycle_.state() == State::kHandover;
    if (input.event == Event::kDecodeFailed && moving) {
      context_->placement->ReportTransferFailed(prefill_worker_.id, input.worker.id);
    }
  }
  // A pinned request's is the pair's first: it also made the connection.
  if (const auto* fetched = std::get_if<v1::Fetched>(&input.payload);
      fetched != nullptr && input.epoch == decode_epoch_ && !pinned_.has_value()) {
    // The pair's speed is what it took while there was something to move.
    context_->placement->ReportTransfer(prefill_worker_.id, input.worker.id, fetched->bytes(),
                                        absl::Milliseconds(fetched->transfer_ms() - fetched->waiting_ms()));
  }
  // Its work is done; what it still holds is memory.
  if ((input.event == Event::kPrefilled || input.event == Event::kLocalPrefilled) && input.epoch == prefill_epoch_) {
    prefill_hold_ = {};
    context_->placement->Changed();
  }
  if (input.event == Event::kPrefillEnded || input.event == Event::kPrefillFailed) {
    if (input.epoch != prefill_epoch_) return;
    prefill_leg_.reset();
    prefill_hold_ = {};
    context_->placement->Changed();
  } else if (input.event == Event::kDecodeEnded || input.event == Event::kDecodeFailed) {
    if (input.epoch != decode_epoch_) return;
    // A failed update fails the call although its stream still runs.
    if (failed && decode_leg_ != nullptr) decode_leg_->Cancel();
    decode_leg_.reset();
    if (prefill_leg_ == nullptr) prefill_hold_ = {};  // it computed the prompt itself
    decode_hold_ = {};
    context_->placement->Changed();
  }
}

void RequestDriver::OnGone(const Gone& gone) {
  const absl::Status why = absl::UnavailableError(gone.why);
  if (prefill_leg_ != nullptr && prefill_worker_.id == gone.id) {
    prefill_leg_->Cancel();
    HandleInput({Event::kPrefillFailed, prefill_epoch_, prefill_worker_, why});
  }
  if (decode_leg_ != nullptr && decode_worker_.id == gone.id) {
    decode_leg_->Cancel();
    HandleInput({Event::kDecodeFailed, decode_epoch_, decode_worker_, why});
  }
}

void RequestDriver::Execute(AskPlacement& command) {
  // What is left of a former attempt's calls was cancelled, and their ends say nothing of this one.
  prefill_leg_.reset();
  decode_leg_.reset();
  prefill_epoch_ = decode_epoch_ = lifecycle_.epoch();
  prefill_hold_ = {};
  decode_hold_ = {};
  prefill_worker_ = decode_worker_ = {};
  if (pinned_.has_value()) return PlacePinned();
  const AdmittedRequest& admitted = lifecycle_.request();
  PlaceRequest request;
  request.request_id = key_;
  request.epoch = lifecycle_.epoch();
  request.need = std::move(command.need);
  request.need.prefix_names = context_->placement->PrefixNames(admitted.tenant, admitted.prompt_token_ids);
  request.needs_decode = command.needs_decode;
  request.tenant = admitted.tenant;
  request.priority = admitted.priority;
  request.arrival = arrival_;
  request.deadline = lifecycle_.deadline();
  asked_ = context_->clock->Now();
  context_->placement->Ask(
      placement_id_, std::move(request),
      [self = shared_from_this(), epoch = lifecycle_.epoch()](absl::StatusOr<PlacedHolds> holds) {
        self->Enqueue({Placed{epoch, std::move(holds)}, self->context_->clock->Now()});
      });
}

void RequestDriver::PlacePinned() {
  absl::StatusOr<PlacedHolds> holds = absl::UnavailableError("its workers failed");
  if (lifecycle_.epoch() == 1) holds = PlacedHolds{*pinned_, {}, {}};
  Enqueue({Placed{lifecycle_.epoch(), std::move(holds)}, context_->clock->Now()});
}

void RequestDriver::OnPlaced(Placed& placed) {
  // The client went away, or the deadline passed, meanwhile: the holds go with `placed`.
  if (lifecycle_.state() != State::kPlacing || placed.epoch != lifecycle_.epoch()) return;
  context_->metrics->Waited(context_->clock->Now() - asked_);
  if (!placed.holds.ok()) return HandleInput({Event::kUnplaced, 0, {}, placed.holds.status()});
  prefill_hold_ = std::move(placed.holds->prefill);
  decode_hold_ = std::move(placed.holds->decode);
  placed_ = context_->clock->Now();
  forecast_ttft_ = placed.epoch == 1 ? placed.holds->ttft : absl::ZeroDuration();
  HandleInput({Event::kPlaced, 0, {}, std::move(placed.holds->pair)});
}

void RequestDriver::Execute(StartPrefill& command) {
  prefill_worker_ = command.worker;
  prefill_epoch_ = command.request.epoch();
  const std::shared_ptr<RequestDriver> self = shared_from_this();
  command.trace = trace_;
  prefill_leg_ = context_->workers->Prefill(
      std::move(command), lifecycle_.deadline(),
      [self, epoch = prefill_epoch_, worker = prefill_worker_](v1::PrefillEvent& event) {
        self->OnPrefillEvent(epoch, worker, event);
      },
      [self, epoch = prefill_epoch_, worker = prefill_worker_](absl::Status status) {
        if (status.ok()) return self->Post({Event::kPrefillEnded, epoch, worker, {}});
        self->Post({Event::kPrefillFailed, epoch, worker, std::move(status)});
      });
}

void RequestDriver::OnPrefillEvent(uint32_t epoch, const WorkerRef& worker, v1::PrefillEvent& event) {
  switch (event.event_case()) {
    case v1::PrefillEvent::kToken:
      return Post({Event::kPrefillToken, epoch, worker, std::move(*event.mutable_token())});
    case v1::PrefillEvent::kTicket:
      return Post({Event::kTicket, epoch, worker, std::move(*event.mutable_ticket())});
    case v1::PrefillEvent::kPrefilled:
      return Post({Event::kPrefilled, epoch, worker, std::move(*event.mutable_prefilled())});
    case v1::PrefillEvent::EVENT_NOT_SET:
      return;  // a later version's
  }
}

void RequestDriver::Execute(StartDecode& command) {
  decode_worker_ = command.worker;
  decode_epoch_ = command.request.epoch();
  const std::shared_ptr<RequestDriver> self = shared_from_this();
  command.trace = trace_;
  decode_leg_ = context_->workers->Decode(
      std::move(command), lifecycle_.deadline(),
      [self, epoch = decode_epoch_, worker = decode_worker_](std::span<v1::DecodeEvent* const> events) {
        self->OnDecodeEvents(epoch, worker, events);
      },
      [self, epoch = decode_epoch_, worker = decode_worker_](absl::Status status) {
        if (status.ok()) return self->Post({Event::kDecodeEnded, epoch, worker, {}});
        self->Post({Event::kDecodeFailed, epoch, worker, std::move(status)});
      });
}

void RequestDriver::OnDecodeEvents(uint32_t epoch, const WorkerRef& worker, std::span<v1::DecodeEvent* const> events) {
  const absl::Time now = context_->clock->Now();
  std::vector<Item> items;
  items.reserve(events.size());
  for (v1::DecodeEvent* const event : events) {
    std::optional<Input> input = InputOf(epoch, worker, *event);
    if (input.has_value()) items.push_back({*std::move(input), now});
  }
  EnqueueAll(items);
}

void RequestDriver::Execute(CancelPrefill&) {
  if (prefill_leg_ != nullptr) prefill_leg_->Cancel();
}

void RequestDriver::Execute(CancelDecode&) {
  if (decode_leg_ != nullptr) decode_leg_->Cancel();
}

void RequestDriver::Execute(UpdateDecode& command) {
  const std::shared_ptr<RequestDriver> self = shared_from_this();
  context_->workers->Update(command, lifecycle_.deadline(),
                            [self, epoch = command.request.epoch(), worker = command.worker](absl::Status status) {
                              self->Post({Event::kDecodeFailed, epoch, worker, std::move(status)});
                            });
}

void RequestDriver::Execute(OfferHistory& command) { context_->workers->Offer(command); }

void RequestDriver::Execute(Wait& command) {
  context_->metrics->Retried(command.why);
  LogWarn("request goes elsewhere", {{"request", key_}, {"attempt", command.epoch}, {"why", command.why}});
  const uint32_t epoch = command.epoch;
  if (command.delay <= absl::ZeroDuration()) return Post({Event::kBackoffOver, epoch, {}, {}});
  const std::weak_ptr<RequestDriver> weak = shared_from_this();
  wait_timer_ = context_->timers->After(command.delay, [weak, epoch] {
    const std::shared_ptr<RequestDriver> alive = weak.lock();
    if (alive != nullptr) alive->Post({Event::kBackoffOver, epoch, {}, {}});
  });
}

void RequestDriver::Execute(Send& command) {
  client_->Push(std::move(command.response));
  ++unflushed_;
}

void RequestDriver::Execute(Finish& command) {
  prefill_hold_ = {};
  decode_hold_ = {};
  context_->placement->Leave(placement_id_);
  context_->placement->Changed();
  deadline_timer_.reset();
  wait_timer_.reset();
  context_->metrics->Ended(command.status, lifecycle_.stats(), emit_);
  context_->metrics->Judged(command.status, lifecycle_.stats(),
                            context_->placement->promise(lifecycle_.request().priority));
  LogEnd(command.status);
  TraceEnd(command.status);
  if (context_->log != nullptr) {
    const AdmittedRequest& request = lifecycle_.request();
    context_->log->Add(key_, request.tenant, arrival_, command.status, lifecycle_.stats(), request.sampling.seed(),
                       emit_);
  }
  // First, so that a client that knows its request is over may use the id again.
  context_->table->End(key_, this);
  client_->Finish(std::move(command.status));
}

void RequestDriver::TraceEnd(const absl::Status& status) const {
  if (context_->tracer == nullptr || !trace_->sampled) return;
  const AdmittedRequest& request = lifecycle_.request();
  TraceRequest(*context_->tracer, {.key = key_,
                                   .model = request.model,
                                   .max_tokens = request.sampling.max_tokens(),
                                   .place = *trace_,
                                   .parent_id = client_trace_.has_value() ? client_trace_->span_id : 0,
                                   .arrived = arrival_,
                                   .emit = emit_},
               status, lifecycle_.stats());
}

void RequestDriver::LogEnd(const absl::Status& status) {
  const RequestStats& s = lifecycle_.stats();
  const auto ms = [](absl::Duration d) { return d == absl::InfiniteDuration() ? 0.0 : absl::ToDoubleMilliseconds(d); };
  Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "request ended",
      {{"request", key_},
       {"code", RuleFor(status.code()).name},
       {"attempts", s.attempts},
       {"prompt_tokens", s.prompt_tokens},
       {"cached_tokens", s.cached_tokens},
       {"completion_tokens", s.completion_tokens},
       {"tokenize_ms", ms(s.tokenize)},
       {"queue_ms", ms(s.queue)},
       {"prefill_ms", ms(s.prefill)},
       {"reserve_ms", ms(s.reserve)},
       {"transfer_ms", ms(s.transfer)},
       {"handover_ms", ms(s.handover)},
       {"first_token_ms", ms(s.ttft)},
       {"emit_ms", ms(emit_)},
       {"stop_ms", ms(s.stop)},
       {"total_ms", ms(s.total)},
       {"mode", s.mode},
       {"prefill_worker", s.prefill_worker},
       {"decode_worker", s.decode_worker},
       {"message", status.message()}});
}

}  // namespace baton::router
