#include "prefill_worker/service.h"

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
#include "engine/request_proto.h"

namespace baton::prefill_worker {

namespace {

constexpr size_t kMaxPendingExports = 4096;

}  // namespace

using Stream = rpc::StreamWriter<v1::PrefillEvent>;

// One Prefill: the engine's sink. Runs on the engine's thread, then, after OnDone, on the export thread; Abandon comes
// from gRPC's threads.
class PrefillService::Call : public engine::RequestSink, public std::enable_shared_from_this<Call> {
 public:
  Call(PrefillService* service, std::string engine_id, const v1::PrefillRequest& request)
      : service_(service),
        engine_id_(std::move(engine_id)),
        request_id_(request.request_id()),
        epoch_(request.epoch()),
        num_tokens_(static_cast<uint32_t>(request.prompt_token_ids_size())),
        hand_over_(request.hand_over()) {
    ++service_->open_calls_;
  }
  ~Call() override { --service_->open_calls_; }

  // Makes the reactor. The stream's callback holds this object until the call is done, so that a drain waits for that.
  std::shared_ptr<Stream> OpenStream() {
    stream_ = Stream::Create({}, [self = shared_from_this()] { self->Abandon(); });
    return stream_;
  }

  void OnToken(const engine::SampledToken& token) override {
    auto* metrics = service_->options_.engine_metrics;
    last_token_ = metrics->OnSampled();
    v1::PrefillEvent event;
    *event.mutable_token() = engine::TokenToProto(token);
    stream_->Push(std::move(event));
    metrics->OnEmitted(last_token_);
  }

  void OnPrefilled(kvcache::BlockLease blocks) override {
    if (hand_over_) lease_ = std::move(blocks);
  }

  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override {
    stats_ = stats;
    if (!status.ok()) return End(status);
    if (lease_.empty()) {
      PushPrefilled(nullptr);
      return End(absl::OkStatus());
    }
    if (!service_->exports_.TryPush(shared_from_this())) {
      End(absl::UnavailableError("too many exports wait, or the worker is stopping; try another"));
    }
  }

  // Export thread.
  void Export() {
    const absl::Time begin = absl::Now();
    uint64_t bytes = 0;
    for (size_t i = 0; i < lease_.blocks().size(); ++i) bytes += lease_.bytes(i).size();
    if (stream_->cancelled()) return End(absl::CancelledError("the caller went away before the hand-over"));
    absl::StatusOr<v1::Ticket> ticket = service_->options_.exporter->ExportSealed(
        {.request_id = request_id_, .epoch = epoch_, .num_tokens = num_tokens_, .lease = service_->options_.lease},
        std::move(lease_));
    if (!ticket.ok()) return End(ticket.status());
    service_->export_seconds_->Observe(absl::ToDoubleSeconds(absl::Now() - begin));
    service_->bytes_exported_->Increment(static_cast<double>(bytes));
    bool abandoned = false;
    {
      MutexLock lock(&mu_);
      exported_ = kvtransfer::TransferId::Of(*ticket);
      abandoned = abandoned_;
    }
    // Nobody will ever present a ticket that could not be delivered.
    if (abandoned) service_->options_.exporter->Release(kvtransfer::TransferId::Of(*ticket));
    PushPrefilled(&*ticket);
    End(absl::OkStatus());
  }

  void Abandon() {
    service_->options_.model->engine()->Cancel(engine_id_);
    std::optional<kvtransfer::TransferId> exported;
    {
      MutexLock lock(&mu_);
      abandoned_ = true;
      exported = exported_;
    }
    if (exported.has_value()) service_->options_.exporter->Release(*exported);
  }

 private:
  void PushPrefilled(const v1::Ticket* ticket) {
    v1::PrefillEvent event;
    v1::Prefilled* prefilled = event.mutable_prefilled();
    if (ticket != nullptr) *prefilled->mutable_ticket() = *ticket;
    prefilled->set_cached_tokens(stats_.cached_tokens);
    prefilled->set_queue_ms(absl::ToDoubleMilliseconds(stats_.queue));
    prefilled->set_prefill_ms(absl::ToDoubleMilliseconds(stats_.prefill));
    prefilled->set_num_chunks(stats_.num_chunks);
    stream_->Push(std::move(event));
  }

  void End(const absl::Status& status) {
    lease_.Reset();
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
  std::shared_ptr<Stream> stream_;
  kvcache::BlockLease lease_;
  engine::RequestStats stats_;
  absl::Time last_token_ = absl::InfinitePast();
  Mutex mu_;
  std::optional<kvtransfer::TransferId> exported_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

PrefillService::PrefillService(const Options& options)
    : options_(options),
      export_seconds_(&options.metrics->Histogram("baton_kv_export_seconds",
                                                  "From the end of prefill to the signed ticket", LatencyBuckets())),
      bytes_exported_(&options.metrics->Counter("baton_kv_exported_bytes_total", "KV bytes that tickets named")),
      exports_(kMaxPendingExports) {
  auto* metrics = options.metrics;
  auto* outstanding = &metrics->Gauge("baton_tickets", "Tickets issued and not yet fetched, released or expired");
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
                                 released = ended("released"), expired = ended("expired")] {
    const kvtransfer::Exporter::Counters c = exporter->counters();
    outstanding->Set(static_cast<double>(c.outstanding));
    in_flight->Set(static_cast<double>(c.in_flight));
    RaiseTo(completed, static_cast<double>(c.completed));
    RaiseTo(failed, static_cast<double>(c.failed));
    RaiseTo(released, static_cast<double>(c.released));
    RaiseTo(expired, static_cast<double>(c.expired));
    RaiseTo(sent, static_cast<double>(c.bytes_sent));
    for (size_t i = 0; i < refusals.size(); ++i) RaiseTo(refusals[i], static_cast<double>(c.refusals[i]));
  });
  export_thread_ = std::thread([this] { RunExports(); });
}

PrefillService::~PrefillService() {
  // The server is down, so every call was cancelled; the engine lets go of the last ones within a step.
  while (open_calls_ > 0) absl::SleepFor(absl::Milliseconds(1));
  exports_.Close();
  export_thread_.join();
}

void PrefillService::RunExports() {
  while (true) {
    std::optional<std::shared_ptr<Call>> call = exports_.Pop();
    if (call.has_value()) {
      (*call)->Export();
    } else if (exports_.closed()) {
      return;
    }
  }
}

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Prefill(grpc::CallbackServerContext* context,
                                                                    const v1::PrefillRequest* request) {
  options_.engine_metrics->OnRequest();
  engine::Engine* engine = options_.model->engine();
  // The number keeps two calls apart that name the same attempt.
  const std::string engine_id = absl::StrCat(request->request_id(), "#", request->epoch(), ".", next_call_++);
  auto call = std::make_shared<Call>(this, engine_id, *request);
  std::shared_ptr<Stream> stream = call->OpenStream();
  absl::StatusOr<engine::Request> parsed =
      engine::RequestFromProto(request->request_id(), request->prompt_token_ids(), request->sampling(),
                               request->tenant(), rpc::DeadlineOf(*context), options_.model->limits());
  if (!parsed.ok()) {
    call->OnDone(parsed.status(), {});
    return stream.get();
  }
  parsed->request_id = engine_id;
  engine->SubmitPrefill(*std::move(parsed), call);
  // A cancellation that came before the engine knew the request.
  if (stream->cancelled()) call->Abandon();
  return stream.get();
}

grpc::ServerUnaryReactor* PrefillService::ReleaseTicket(grpc::CallbackServerContext* context,
                                                        const v1::ReleaseTicketRequest* request,
                                                        v1::ReleaseTicketResponse* response) {
  response->set_released(
      request->request_id().empty()
          ? options_.exporter->Release({request->transfer_id_high(), request->transfer_id_low()})
          : options_.exporter->ReleaseRequest(request->request_id(), request->epoch()));
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

v1::WorkerLoad PrefillService::load() const {
  v1::WorkerLoad load = engine::LoadToProto(options_.model->engine()->load());
  load.set_tickets(static_cast<uint32_t>(options_.exporter->counters().outstanding));
  return load;
}

v1::PrefixReport PrefillService::prefixes(uint64_t version) const {
  const kvcache::PrefixJournal::Report report = options_.model->engine()->prefixes_since(version);
  v1::PrefixReport out;
  out.set_base_version(report.base_version);
  out.set_version(report.version);
  out.mutable_added()->Assign(report.added.begin(), report.added.end());
  out.mutable_removed()->Assign(report.removed.begin(), report.removed.end());
  return out;
}

void PrefillService::Drain() { options_.model->engine()->Drain(); }

bool PrefillService::idle() const {
  return open_calls_ == 0 && options_.exporter->counters().outstanding == 0 && options_.model->engine()->Idle();
}

}  // namespace baton::prefill_worker
