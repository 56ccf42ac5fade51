#include "prefill_worker/service.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/logging.h"
#include "common/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/stream_writer.h"
#include "common/status.h"
#include "common/tracing/grpc_metadata.h"
#include "engine/request_proto.h"
#include "kvtransfer/ticket.h"

namespace baton::prefill_worker {

namespace {

constexpr absl::Duration kHistoryPatience = absl::Milliseconds(50);

}  // namespace

using Stream = rpc::EventStream<v1::PrefillEvent>;
using MakeStream = rpc::MakeEventStream<v1::PrefillEvent>;

// One Prefill: the engine's sink and the export's owner. The engine's thread computes, a transport's thread may end the
// export, gRPC's threads may abandon the call; it ends when the engine is done with it and the export is over.
class PrefillService::Call : public engine::RequestSink, public std::enable_shared_from_this<Call> {
 public:
  Call(PrefillService* service, std::string engine_id, const v1::PrefillRequest& request, absl::Time deadline,
       const std::optional<tracing::SpanContext>& trace)
      : service_(service),
        engine_id_(std::move(engine_id)),
        request_id_(request.request_id()),
        epoch_(request.epoch()),
        num_tokens_(static_cast<uint32_t>(request.prompt_token_ids_size())),
        hand_over_(request.hand_over()),
        deadline_(deadline),
        trace_(trace),
        begun_(service->options_.clock->Now()) {
    ++service_->open_calls_;
  }
  ~Call() override { --service_->open_calls_; }

  // The stream's callback holds this object until the call is done, so that a drain waits for that.
  std::shared_ptr<Stream> OpenStream(const MakeStream& make_stream) {
    stream_ = make_stream([self = shared_from_this()] { self->Abandon(); });
    return stream_;
  }

  void OnScheduled(kvcache::BlockLease blocks) override {
    if (!hand_over_) return;
    const uint64_t bytes = blocks.blocks().size() * service_->options_.model->kv_layout().block_bytes();
    absl::StatusOr<v1::Ticket> ticket = service_->options_.exporter->Export(
        {.request_id = request_id_,
         .epoch = epoch_,
         .num_tokens = num_tokens_,
         .lease = service_->options_.lease,
         .open_until = deadline_,
         .on_over = [self = shared_from_this()](absl::Status how) { self->OnOver(std::move(how)); }},
        std::move(blocks));
    bool abandoned = false;
    {
      MutexLock lock(&mu_);
      if (ticket.ok()) exported_ = kvtransfer::TransferId::Of(*ticket);
      abandoned = abandoned_;
    }
    if (!ticket.ok()) {
      export_error_ = ticket.status();
      return service_->options_.model->engine()->Cancel(engine_id_);
    }
    if (abandoned) return DropExport();
    service_->bytes_exported_->Increment(static_cast<double>(bytes));
    v1::PrefillEvent event;
    *event.mutable_ticket() = *std::move(ticket);
    stream_->Push(std::move(event));
  }

  void OnComputed(int num_tokens) override {
    const std::optional<kvtransfer::TransferId> exported = this->exported();
    const int block_size = service_->options_.model->kv_layout().block_size;
    // A block that is partly filled is final when the whole prompt is, which Close says.
    if (exported.has_value()) service_->options_.exporter->Seal(*exported, static_cast<size_t>(num_tokens / block_size));
  }

  void OnToken(const engine::SampledToken& token) override {
    auto* metrics = service_->options_.engine_metrics;
    last_token_ = metrics->OnSampled();
    sampled_ = service_->options_.clock->Now();
    v1::PrefillEvent event;
    *event.mutable_token() = engine::TokenToProto(token);
    v1::SampledToken* copy = first_tokens_.add_tokens();
    *copy = event.token();
    copy->clear_logprob();
    copy->clear_top_logprobs();
    goes_on_ = goes_on_ || token.finish_reason == engine::FinishReason::kNone;
    stream_->Push(std::move(event));
    metrics->OnEmitted(last_token_);
  }

  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override {
    stats_ = stats;
    const absl::Status end = export_error_.ok() ? status : export_error_;
    Trace(end);
    const std::optional<kvtransfer::TransferId> exported = this->exported();
    if (!end.ok()) {
      if (exported.has_value()) service_->options_.exporter->Fail(*exported, end);
      return End(end);
    }
    PushPrefilled();
    if (exported.has_value()) {
      service_->options_.exporter->Close(*exported, !goes_on_, first_tokens_.SerializeAsString());
    }
    EndIfOver(/*engine_done=*/true, std::nullopt);
  }

  void Abandon() {
    service_->options_.model->engine()->Cancel(engine_id_);
    {
      MutexLock lock(&mu_);
      abandoned_ = true;
    }
    DropExport();
  }

 private:
  std::optional<kvtransfer::TransferId> exported() const {
    MutexLock lock(&mu_);
    return exported_;
  }

  void DropExport() {
    const std::optional<kvtransfer::TransferId> exported = this->exported();
    if (exported.has_value()) {
      service_->options_.exporter->Fail(*exported, absl::CancelledError("the request was cancelled"));
    }
  }

  // Any thread: the blocks are nobody's lease any more.
  void OnOver(absl::Status how) { EndIfOver(/*engine_done=*/false, std::move(how)); }

  void EndIfOver(bool engine_done, std::optional<absl::Status> over) {
    absl::Status how;
    {
      MutexLock lock(&mu_);
      engine_done_ = engine_done_ || engine_done;
      if (over.has_value()) over_ = std::move(over);
      if (!engine_done_ || ended_ || (exported_.has_value() && !over_.has_value())) return;
      if (over_.has_value()) how = *over_;
    }
    End(how);
  }

  // The engine is done: what follows is waiting for the KV's reader.
  void Trace(const absl::Status& status) const {
    const tracing::Tracer* tracer = service_->options_.tracer;
    if (tracer == nullptr) return;
    const absl::Time end = service_->options_.clock->Now();
    tracing::Span span;
    span.name = kStations[1];
    span.kind = tracing::SpanKind::kServer;
    span.context = tracer->Begin(trace_);
    if (!span.context.sampled) return;
    span.parent_id = trace_.has_value() ? trace_->span_id : 0;
    span.start = begun_;
    span.end = end;
    span.code = status.code();
    span.Set("baton.request_id", request_id_);
    span.Set("baton.attempt", int64_t{epoch_});
    span.Set("gen_ai.usage.input_tokens", int64_t{num_tokens_});
    span.Set("baton.cached_tokens", int64_t{stats_.cached_tokens});
    span.Set("baton.chunks", int64_t{stats_.num_chunks});
    span.SetMs("baton.queue_ms", stats_.queue);
    const tracing::SpanContext place = span.context;
    tracer->End(std::move(span));
    if (!status.ok()) return;
    tracer->End(tracing::Tracer::Child(place, kStations[3], std::max(begun_, sampled_ - stats_.sample), sampled_));
  }

  void PushPrefilled() {
    v1::PrefillEvent event;
    *event.mutable_prefilled() = engine::PrefilledToProto(stats_);
    stream_->Push(std::move(event));
  }

  // Once; the engine is done.
  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      ended_ = true;
    }
    if (!status.ok()) service_->options_.engine_metrics->OnRefused(status);
    LogDebug("prefill ended", {{"request", request_id_},
                               {"epoch", epoch_},
                               {"code", RuleFor(status.code()).name},
                               {"prompt_tokens", num_tokens_},
                               {"cached_tokens", stats_.cached_tokens},
                               {"queue_ms", absl::ToDoubleMilliseconds(stats_.queue)},
                               {"prefill_ms", absl::ToDoubleMilliseconds(stats_.prefill)}});
    stream_->Finish(status);
    stream_.reset();  // its callback holds this object
    if (last_token_ != absl::InfinitePast()) service_->options_.engine_metrics->OnStopped(last_token_);
  }

  PrefillService* const service_;
  const std::string engine_id_;
  const std::string request_id_;
  const uint32_t epoch_;
  const uint32_t num_tokens_;
  const bool hand_over_;
  const absl::Time deadline_;
  const std::optional<tracing::SpanContext> trace_;  // the caller's
  const absl::Time begun_;
  // The engine's thread, until it is done; then whoever ends the call.
  std::shared_ptr<Stream> stream_;
  v1::FirstTokens first_tokens_;
  bool goes_on_ = false;
  absl::Status export_error_;
  engine::RequestStats stats_;
  absl::Time last_token_ = absl::InfinitePast();
  absl::Time sampled_;  // the same by the clock of all spans
  mutable Mutex mu_;
  std::optional<kvtransfer::TransferId> exported_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> over_ ABSL_GUARDED_BY(mu_);  // how the export ended
  bool engine_done_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

PrefillService::PrefillService(const Options& options)
    : options_(options),
      bytes_exported_(&options.metrics->Counter("baton_kv_exported_bytes_total", "KV bytes that tickets named")) {
  auto* metrics = options.metrics;
  auto* outstanding = &metrics->Gauge("baton_tickets", "Tickets issued and not yet fetched, released or expired");
  std::vector<prometheus::Gauge*> by_age;
  for (const char* age : {"below_1s", "below_10s", "below_60s", "older"}) {
    by_age.push_back(&metrics->Gauge("baton_tickets_by_age", "Outstanding tickets, by time since issue", {{"age", age}}));
  }
  const auto spent = [metrics](const char* phase) {
    return &metrics->Counter("baton_kv_send_seconds_total",
                             "Seconds of sends: posting (checksums, tags, calls of the transport) and waiting for blocks",
                             {{"phase", phase}});
  };
  metrics->Gauge("baton_kv_block_tags", "1: blocks carry keyed tags, against forgery; 0: checksums, against corruption")
      .Set(options.exporter->options().block_tags ? 1 : 0);
  auto* in_flight = &metrics->Gauge("baton_tickets_being_fetched", "Tickets whose blocks are being read");
  const auto ended = [metrics](const char* how) {
    return &metrics->Counter("baton_tickets_ended_total", "Tickets, by how they ended", {{"how", how}});
  };
  const auto refused = [metrics](kvtransfer::Refusal why) {
    return &metrics->Counter("baton_ticket_refusals_total", "Claims of tickets that were refused, by reason",
                             {{"reason", std::string(kvtransfer::Name(why))}});
  };
  std::vector<prometheus::Counter*> refusals;
  for (int i = 0; i < kvtransfer::kNumRefusals; ++i) refusals.push_back(refused(static_cast<kvtransfer::Refusal>(i)));
  auto* sent = &metrics->Counter("baton_kv_sent_bytes_total", "KV bytes of fetches that completed");
  collect_ = metrics->OnCollect([=, exporter = options.exporter, completed = ended("fetched"), failed = ended("failed"),
                                 posting = spent("posting"), waiting = spent("waiting"),
                                 released = ended("released"), expired = ended("expired")] {
    const kvtransfer::Exporter::Counters c = exporter->counters();
    outstanding->Set(static_cast<double>(c.outstanding));
    in_flight->Set(static_cast<double>(c.in_flight));
    RaiseTo(completed, static_cast<double>(c.completed));
    RaiseTo(failed, static_cast<double>(c.failed));
    RaiseTo(released, static_cast<double>(c.released));
    RaiseTo(expired, static_cast<double>(c.expired));
    RaiseTo(sent, static_cast<double>(c.bytes_sent));
    RaiseTo(posting, c.posting_seconds);
    RaiseTo(waiting, c.waiting_seconds);
    for (size_t i = 0; i < by_age.size(); ++i) by_age[i]->Set(static_cast<double>(c.by_age[i]));
    for (size_t i = 0; i < refusals.size(); ++i) RaiseTo(refusals[i], static_cast<double>(c.refusals[i]));
  });
}

PrefillService::~PrefillService() {
  // The server is down, so every call was cancelled; engine and transport let go of the last ones within a step.
  while (open_calls_ > 0) absl::SleepFor(absl::Milliseconds(1));
}

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Prefill(grpc::CallbackServerContext* context,
                                                                    const v1::PrefillRequest* request) {
  std::shared_ptr<rpc::StreamWriter<v1::PrefillEvent>> writer;
  Serve(*request, rpc::DeadlineOf(*context), [&writer](std::function<void()> on_cancel) {
    writer = rpc::StreamWriter<v1::PrefillEvent>::Create({}, std::move(on_cancel));
    return writer;
  }, tracing::FromCall(*context));
  return writer.get();
}

void PrefillService::Serve(const v1::PrefillRequest& request, absl::Time deadline, const MakeStream& make_stream,
                           const std::optional<tracing::SpanContext>& trace) {
  options_.engine_metrics->OnRequest();
  engine::Engine* engine = options_.model->engine();
  // The number keeps two calls apart that name the same attempt.
  const std::string engine_id = absl::StrCat(request.request_id(), "#", request.epoch(), ".", next_call_++);
  auto call = std::make_shared<Call>(this, engine_id, request, deadline, trace);
  const std::shared_ptr<Stream> stream = call->OpenStream(make_stream);
  absl::StatusOr<engine::Request> parsed =
      engine::RequestFromProto(request.request_id(), request.prompt_token_ids(), request.sampling(), request.tenant(),
                               deadline, options_.model->limits());
  if (!parsed.ok()) return call->OnDone(parsed.status(), {});
  if (absl::Status s = options_.model->Constrain(request.sampling(), &*parsed); !s.ok()) return call->OnDone(s, {});
  parsed->request_id = engine_id;
  engine->SubmitPrefill(*std::move(parsed), call);
  // A cancellation that came before the engine knew the request.
  if (stream->cancelled()) call->Abandon();
}

// One ImportHistory: room, fetch, prefix cache. It begins on a gRPC thread and goes on on the engine's and the transport's.
class PrefillService::HistoryImport : public std::enable_shared_from_this<HistoryImport> {
 public:
  HistoryImport(PrefillService* service, const v1::ImportHistoryRequest& request, ImportDone done)
      : service_(service), request_(request), done_(std::move(done)) {
    ++service_->open_calls_;
  }
  ~HistoryImport() { --service_->open_calls_; }

  void Run() {
    const std::vector<int32_t> ids(request_.token_ids().begin(), request_.token_ids().end());
    // Prompts that wait must not wait longer for this.
    service_->options_.model->engine()->ReserveKv(
        absl::StrCat(request_.request_id(), "#", request_.epoch(), ".h", service_->next_call_++),
        static_cast<int>(ids.size()), service_->options_.clock->Now() + kHistoryPatience,
        [self = shared_from_this()](absl::StatusOr<kvcache::BlockLease> lease) {
          if (!lease.ok()) {
            const bool full = absl::IsDeadlineExceeded(lease.status());
            return self->End(full ? absl::ResourceExhaustedError("no room for the history right now") : lease.status());
          }
          self->Fetch(*std::move(lease));
        },
        {request_.tenant(), ids});
  }

 private:
  void Fetch(kvcache::BlockLease lease) {
    kvtransfer::FetchRequest fetch;
    fetch.ticket = request_.ticket();
    fetch.first_block = static_cast<uint32_t>(lease.num_held());
    fetch.destination = lease.SplitOff(lease.num_held());
    fetch.deadline = service_->options_.clock->Now() + std::max(kvtransfer::Lease(fetch.ticket), absl::Seconds(2));
    auto held = std::make_shared<kvcache::BlockLease>(std::move(lease));
    service_->TransportFor(fetch.ticket)
        ->Fetch(std::move(fetch), [self = shared_from_this(), held](absl::StatusOr<kvtransfer::FetchResult> result,
                                                                    kvcache::BlockLease destination) {
          if (!result.ok()) return self->End(result.status());
          held->Join(std::move(destination));
          const auto& ids = self->request_.token_ids();
          self->service_->options_.model->engine()->AdoptPrefix(self->request_.tenant(), {ids.begin(), ids.end()},
                                                                std::move(*held));
          self->response_.set_blocks(result->stats.blocks);
          self->End(absl::OkStatus());
        });
  }

  void End(const absl::Status& status) {
    service_->options_.metrics
        ->Counter("baton_kv_history_imports_total", "Turns whose KV was offered back, by what became of it",
                  {{"code", RuleFor(status.code()).name}})
        .Increment();
    done_(status, response_);
  }

  PrefillService* const service_;
  const v1::ImportHistoryRequest request_;
  v1::ImportHistoryResponse response_;
  const ImportDone done_;
};

absl::Status PrefillService::CheckHistory(const v1::ImportHistoryRequest& request) const {
  const v1::Ticket& ticket = request.ticket();
  if (absl::Status s = kvtransfer::CheckTicketForFetch(options_.key, ticket, options_.model->kv_layout(),
                                                       options_.model->fingerprint());
      !s.ok()) {
    return s;
  }
  if (ticket.request_id() != request.request_id() || ticket.epoch() != request.epoch()) {
    return absl::PermissionDeniedError("the ticket is for another request");
  }
  const uint32_t block_size = ticket.layout().block_size();
  if (ticket.num_tokens() != static_cast<uint32_t>(request.token_ids_size()) || ticket.num_tokens() % block_size != 0) {
    return InvalidField("token_ids", absl::StrCat(request.token_ids_size(), " for a ticket of ", ticket.num_tokens(),
                                                  " tokens; want whole blocks of ", block_size));
  }
  if (TransportFor(ticket) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the decode worker offers transport \"",
                                                      ticket.endpoint().transport(), "\", which this worker does not have"));
  }
  return absl::OkStatus();
}

kvtransfer::TransportClient* PrefillService::TransportFor(const v1::Ticket& ticket) const {
  if (auto it = options_.transports.find(ticket.endpoint().transport()); it != options_.transports.end()) {
    return it->second;
  }
  for (const v1::Endpoint& endpoint : ticket.fallbacks()) {
    if (auto it = options_.transports.find(endpoint.transport()); it != options_.transports.end()) return it->second;
  }
  return nullptr;
}

grpc::ServerUnaryReactor* PrefillService::ImportHistory(grpc::CallbackServerContext* context,
                                                        const v1::ImportHistoryRequest* request,
                                                        v1::ImportHistoryResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Import(*request, [reactor, response](const absl::Status& status, const v1::ImportHistoryResponse& answer) {
    *response = answer;
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

void PrefillService::Import(const v1::ImportHistoryRequest& request, ImportDone done) {
  if (absl::Status s = CheckHistory(request); !s.ok()) return done(s, {});
  std::make_shared<HistoryImport>(this, request, std::move(done))->Run();
}

v1::WorkerLoad PrefillService::load() const {
  v1::WorkerLoad load = engine::LoadToProto(options_.model->engine()->load());
  load.set_tickets(static_cast<uint32_t>(options_.exporter->counters().outstanding));
  return load;
}

v1::PrefixReport PrefillService::prefixes(uint64_t version) const {
  return engine::PrefixesToProto(options_.model->engine()->prefixes_since(version));
}

void PrefillService::Drain() { options_.model->engine()->Drain(); }

bool PrefillService::idle() const {
  return open_calls_ == 0 && options_.exporter->counters().outstanding == 0 && options_.model->engine()->Idle();
}

}  // namespace baton::prefill_worker
