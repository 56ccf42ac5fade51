#include "decode_worker/service.h"

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
#include "engine/request_proto.h"

namespace baton::decode_worker {

using Stream = rpc::StreamWriter<v1::DecodeEvent>;

// One Decode, from reserving room through the fetch to the last token. Steps follow one another on the engine's and the
// transport's threads; Abandon comes from gRPC's. A step that finds the call abandoned ends it.
class DecodeService::Call : public engine::RequestSink, public std::enable_shared_from_this<Call> {
 public:
  explicit Call(DecodeService* service) : service_(service) { ++service_->open_calls_; }
  ~Call() override { --service_->open_calls_; }

  std::shared_ptr<Stream> OpenStream() {
    stream_ = Stream::Create({}, [self = shared_from_this()] { self->Abandon(); });
    return stream_;
  }

  // Everything is checked; ask the engine for room.
  void Reserve(engine::Request request, v1::Ticket ticket, std::vector<engine::SampledToken> first_tokens,
               kvtransfer::TransportClient* transport) {
    {
      // Abandon reads these from another thread.
      MutexLock lock(&mu_);
      engine_id_ = request.request_id;
      transport_ = transport;
    }
    request_ = std::move(request);
    ticket_ = std::move(ticket);
    first_tokens_ = std::move(first_tokens);
    service_->options_.model->engine()->ReserveKv(
        request_.request_id, static_cast<int>(request_.prompt_token_ids.size()), request_.deadline,
        [self = shared_from_this()](absl::StatusOr<kvcache::BlockLease> lease) { self->OnReserved(std::move(lease)); });
  }

  void Fail(const absl::Status& status) { End(status); }

  void OnToken(const engine::SampledToken& token) override {
    auto* metrics = service_->options_.engine_metrics;
    last_token_ = metrics->OnSampled();
    v1::DecodeEvent event;
    *event.mutable_token() = engine::TokenToProto(token);
    stream_->Push(std::move(event));
    metrics->OnEmitted(last_token_);
  }

  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override {
    if (status.ok()) {
      v1::DecodeEvent event;
      v1::DecodeDone* done = event.mutable_done();
      done->set_decode_queue_ms(absl::ToDoubleMilliseconds(stats.queue));
      done->set_num_preemptions(stats.num_preemptions);
      done->set_num_steps(stats.num_steps);
      stream_->Push(std::move(event));
    }
    End(status);
  }

  // Whatever runs for this call stops and ends it.
  void Abandon() {
    std::string engine_id;
    kvtransfer::TransportClient* transport = nullptr;
    std::optional<kvtransfer::FetchId> fetch;
    {
      MutexLock lock(&mu_);
      abandoned_ = true;
      engine_id = engine_id_;
      transport = transport_;
      fetch = fetch_;
    }
    if (!engine_id.empty()) service_->options_.model->engine()->Cancel(engine_id);
    if (fetch.has_value()) transport->Cancel(*fetch);
  }

 private:
  bool abandoned() const {
    MutexLock lock(&mu_);
    return abandoned_;
  }

  // Engine's thread.
  void OnReserved(absl::StatusOr<kvcache::BlockLease> lease) {
    if (!lease.ok()) return End(lease.status());
    if (abandoned()) return End(absl::CancelledError("the caller went away"));
    // After the lease's end the exporter frees the blocks, so there is no use in waiting longer.
    const absl::Time deadline =
        std::min(request_.deadline, absl::Now() + absl::Milliseconds(static_cast<int64_t>(ticket_.lease_ms())));
    ++service_->fetching_;
    const kvtransfer::FetchId id = transport_->Fetch(
        {.ticket = std::move(ticket_), .destination = *std::move(lease), .deadline = deadline},
        [self = shared_from_this()](absl::StatusOr<kvtransfer::FetchResult> result, kvcache::BlockLease destination) {
          if (!result.ok()) return self->OnFetched(result.status(), std::move(destination));
          self->OnFetched(std::move(result->stats), std::move(destination));
        });
    bool cancel = false;
    {
      MutexLock lock(&mu_);
      fetch_ = id;
      cancel = abandoned_;
    }
    if (cancel) transport_->Cancel(id);
  }

  // The transport's thread.
  void OnFetched(absl::StatusOr<kvtransfer::FetchStats> stats, kvcache::BlockLease kv) {
    --service_->fetching_;
    RecordFetch(stats);
    if (!stats.ok()) {
      kv.Reset();
      return End(stats.status());
    }
    if (abandoned()) {
      kv.Reset();
      return End(absl::CancelledError("the caller went away"));
    }
    v1::DecodeEvent event;
    v1::Fetched* fetched = event.mutable_fetched();
    fetched->set_bytes(stats->bytes);
    fetched->set_blocks(stats->blocks);
    fetched->set_transfer_ms(absl::ToDoubleMilliseconds(stats->duration));
    fetched->set_transport(stats->transport);
    fetched->set_detail(stats->detail);
    stream_->Push(std::move(event));
    engine::Engine* engine = service_->options_.model->engine();
    engine->SubmitDecode(std::move(request_), std::move(kv), std::move(first_tokens_), shared_from_this());
    if (abandoned()) engine->Cancel(engine_id_);
  }

  void RecordFetch(const absl::StatusOr<kvtransfer::FetchStats>& stats) {
    Metrics* metrics = service_->options_.metrics;
    const MetricLabels transport = {{"transport", std::string(transport_->name())}};
    if (!stats.ok()) {
      MetricLabels labels = transport;
      labels["code"] = RuleFor(stats.status().code()).name;
      metrics->Counter("baton_kv_fetch_failures_total", "Fetches that failed, by status code", labels).Increment();
      return;
    }
    metrics->Counter("baton_kv_received_bytes_total", "KV bytes fetched and verified", transport)
        .Increment(static_cast<double>(stats->bytes));
    metrics->Histogram("baton_kv_fetch_bytes", "KV bytes of one fetch", ByteBuckets(), transport)
        .Observe(static_cast<double>(stats->bytes));
    metrics->Histogram("baton_kv_fetch_seconds", "Seconds of one fetch, checks included", LatencyBuckets(), transport)
        .Observe(absl::ToDoubleSeconds(stats->duration));
  }

  void End(const absl::Status& status) {
    if (!status.ok()) service_->options_.engine_metrics->OnRefused(status);
    LogDebug("decode ended", {{"request", engine_id_}, {"code", RuleFor(status.code()).name}});
    stream_->Finish(status);
    stream_.reset();  // its callback holds this object
    if (last_token_ != absl::InfinitePast()) service_->options_.engine_metrics->OnStopped(last_token_);
  }

  DecodeService* const service_;
  std::shared_ptr<Stream> stream_;
  engine::Request request_;
  v1::Ticket ticket_;
  std::vector<engine::SampledToken> first_tokens_;
  absl::Time last_token_ = absl::InfinitePast();
  mutable Mutex mu_;
  std::string engine_id_;                             // set once, under mu_
  kvtransfer::TransportClient* transport_ = nullptr;  // set once, under mu_
  std::optional<kvtransfer::FetchId> fetch_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

DecodeService::DecodeService(const Options& options)
    : options_(options), layout_(kvtransfer::LayoutToProto(options.model->kv_layout())) {
  auto* fetching = &options.metrics->Gauge("baton_kv_fetches_in_flight", "Fetches that run now");
  collect_ = options.metrics->OnCollect([this, fetching] { fetching->Set(fetching_); });
}

DecodeService::~DecodeService() {
  // The server is down, so every call was cancelled; engine and transport let go of the last ones within a step.
  while (open_calls_ > 0) absl::SleepFor(absl::Milliseconds(1));
}

absl::Status DecodeService::CheckTicket(const v1::DecodeRequest& request) const {
  if (!request.has_ticket()) return InvalidField("ticket", "is missing; decode needs the prompt's KV");
  const v1::Ticket& ticket = request.ticket();
  if (absl::Status s = kvtransfer::CheckTicketForFetch(options_.key, ticket, options_.model->kv_layout(),
                                                       options_.model->fingerprint());
      !s.ok()) {
    return s;
  }
  // Authentic, but is it this request's? Decoding on another prompt's KV would give wrong tokens with an OK.
  if (ticket.request_id() != request.request_id() || ticket.epoch() != request.epoch()) {
    return absl::PermissionDeniedError(absl::StrCat("the ticket is for request \"", ticket.request_id(), "\" epoch ",
                                                    ticket.epoch(), ", not for \"", request.request_id(), "\" epoch ",
                                                    request.epoch()));
  }
  if (ticket.num_tokens() != static_cast<uint32_t>(request.prompt_token_ids_size())) {
    return InvalidField("ticket.num_tokens", absl::StrCat(ticket.num_tokens(), ", but the prompt has ",
                                                          request.prompt_token_ids_size(), " tokens"));
  }
  if (options_.transports.find(ticket.endpoint().transport()) == options_.transports.end()) {
    return absl::FailedPreconditionError(absl::StrCat("the prefill worker ", ticket.endpoint().worker_name(),
                                                      " offers transport \"", ticket.endpoint().transport(),
                                                      "\", which this worker does not have"));
  }
  return absl::OkStatus();
}

absl::Status DecodeService::Begin(const v1::DecodeRequest& request, absl::Time deadline, Call* call) {
  absl::StatusOr<engine::Request> parsed =
      engine::RequestFromProto(request.request_id(), request.prompt_token_ids(), request.sampling(), request.tenant(),
                               deadline, options_.model->limits());
  if (!parsed.ok()) return parsed.status();
  if (absl::Status s = CheckTicket(request); !s.ok()) return s;
  absl::StatusOr<std::vector<engine::SampledToken>> first_tokens =
      engine::FirstTokensFromProto(request.first_tokens(), parsed->sampling.n, options_.model->limits().vocab_size);
  if (!first_tokens.ok()) return first_tokens.status();
  // The number keeps two calls apart that name the same attempt.
  parsed->request_id = absl::StrCat(request.request_id(), "#", request.epoch(), ".", next_call_++);
  call->Reserve(*std::move(parsed), request.ticket(), *std::move(first_tokens),
                options_.transports.at(request.ticket().endpoint().transport()));
  return absl::OkStatus();
}

grpc::ServerWriteReactor<v1::DecodeEvent>* DecodeService::Decode(grpc::CallbackServerContext* context,
                                                                 const v1::DecodeRequest* request) {
  options_.engine_metrics->OnRequest();
  auto call = std::make_shared<Call>(this);
  std::shared_ptr<Stream> stream = call->OpenStream();
  if (absl::Status s = Begin(*request, rpc::DeadlineOf(*context), call.get()); !s.ok()) call->Fail(s);
  // A cancellation that came before the engine knew the request.
  if (stream->cancelled()) call->Abandon();
  return stream.get();
}

v1::WorkerLoad DecodeService::load() const { return engine::LoadToProto(options_.model->engine()->load()); }
void DecodeService::Drain() { options_.model->engine()->Drain(); }
bool DecodeService::idle() const { return open_calls_ == 0 && options_.model->engine()->Idle(); }

}  // namespace baton::decode_worker
