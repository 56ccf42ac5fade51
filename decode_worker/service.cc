#include "decode_worker/service.h"

#include <optional>
#include <set>
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
#include "decode_worker/call_state.h"
#include "engine/request_proto.h"

namespace baton::decode_worker {

using Stream = rpc::EventStream<v1::DecodeEvent>;
using MakeStream = rpc::MakeEventStream<v1::DecodeEvent>;

// One Decode, from reserving room through the fetch to the last token (call_state.h). Events come from the engine's, the
// transport's and gRPC's threads; each takes one step of the table under the lock, and acts without it.
class DecodeService::Call : public engine::RequestSink, public std::enable_shared_from_this<Call> {
 public:
  Call(DecodeService* service, const v1::DecodeRequest& request, const std::optional<tracing::SpanContext>& trace)
      : service_(service),
        key_(request.request_id(), request.epoch()),
        prompt_tokens_(static_cast<size_t>(request.prompt_token_ids_size())),
        begun_(service->options_.clock->Now()),
        trace_(service->options_.tracer, trace, begun_) {
    ++service_->open_calls_;
  }
  ~Call() override { --service_->open_calls_; }

  void OpenStream(const MakeStream& make_stream) {
    std::shared_ptr<Stream> stream = make_stream([self = shared_from_this()] { self->Handle(CallEvent::kAbandon); });
    MutexLock lock(&mu_);
    stream_ = std::move(stream);
  }

  // Everything is checked; ask the engine for room.
  void Reserve(engine::Request request, bool wait_for_go) {
    {
      MutexLock lock(&mu_);
      engine_id_ = request.request_id;
      go_ = !wait_for_go;
    }
    request_ = std::move(request);
    service_->options_.model->engine()->ReserveKv(
        request_.request_id, static_cast<int>(request_.prompt_token_ids.size()), request_.deadline,
        [self = shared_from_this()](absl::StatusOr<kvcache::BlockLease> lease) {
          if (!lease.ok()) return self->Handle(CallEvent::kNoRoom, lease.status());
          self->Put(*std::move(lease));
          self->Handle(CallEvent::kRoom);
        },
        {request_.tenant, request_.prompt_token_ids});
    CancelIfClosing();
  }

  // Everything is checked; the engine computes the prompt here.
  void RunLocally(engine::Request request) {
    {
      MutexLock lock(&mu_);
      engine_id_ = request.request_id;
    }
    request_ = std::move(request);
    Handle(CallEvent::kLocal);
  }

  void Ticket(v1::Ticket ticket) {
    {
      MutexLock lock(&mu_);
      if (!ticket_.has_value()) ticket_ = std::move(ticket);
    }
    Handle(CallEvent::kTicket);
  }
  void BadTicket(const absl::Status& why) { Handle(CallEvent::kBadTicket, why); }
  void Go(const google::protobuf::RepeatedField<uint32_t>& ended_choices) {
    {
      MutexLock lock(&mu_);
      ended_choices_.insert(ended_choices.begin(), ended_choices.end());
      go_ = true;
    }
    Handle(CallEvent::kGo);
  }

  const CallKey& key() const { return key_; }
  size_t prompt_tokens() const { return prompt_tokens_; }

  void OnToken(const engine::SampledToken& token) override {
    auto* metrics = service_->options_.engine_metrics;
    last_token_ = metrics->OnSampled();
    trace_.OnToken(service_->options_.clock->Now());
    v1::DecodeEvent event;
    *event.mutable_token() = engine::TokenToProto(token);
    Push(std::move(event));
    metrics->OnEmitted(last_token_);
  }

  void OnPrefilled(const engine::RequestStats& so_far) override {
    trace_.OnPrefilled(so_far);
    v1::DecodeEvent event;
    *event.mutable_prefilled() = engine::PrefilledToProto(so_far);
    Push(std::move(event));
  }

  bool WantsHistory() const override { return service_->options_.exporter != nullptr; }
  void OnHistory(std::vector<int32_t> token_ids, kvcache::BlockLease blocks) override {
    kvtransfer::Exporter* exporter = service_->options_.exporter;
    absl::StatusOr<v1::Ticket> ticket =
        exporter->ExportSealed({.request_id = key_.first,
                                .epoch = key_.second,
                                .num_tokens = static_cast<uint32_t>(token_ids.size()),
                                .lease = service_->options_.history_lease},
                               std::move(blocks));
    if (ticket.ok()) history_ = *std::move(ticket);  // else the next turn computes it again
  }

  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override {
    trace_.OnDone(stats);
    if (status.ok()) {
      v1::DecodeEvent event;
      v1::DecodeDone* done = event.mutable_done();
      if (history_.has_value()) *done->mutable_history() = *std::move(history_);
      done->set_decode_queue_ms(absl::ToDoubleMilliseconds(stats.queue));
      done->set_num_preemptions(stats.num_preemptions);
      done->set_num_steps(stats.num_steps);
      done->set_logits_ms(absl::ToDoubleMilliseconds(stats.logits));
      done->set_sample_ms(absl::ToDoubleMilliseconds(stats.sample));
      Push(std::move(event));
    }
    Handle(CallEvent::kDone, status);
  }

  // One step of the table. `status` is what the call ends with, should this step end it.
  void Handle(CallEvent event, absl::Status status = absl::OkStatus()) {
    CallAction action;
    {
      MutexLock lock(&mu_);
      const CallStep step = NextCallStep(state_, event);
      // What was given up ends with the reason for that, whatever the last answer is.
      if (step.next == CallState::kClosing && state_ != CallState::kClosing) {
        why_ = status.ok() ? absl::CancelledError("the caller went away") : status;
      }
      if (state_ == CallState::kClosing) status = why_;
      if (event == CallEvent::kAbandon && step.next == CallState::kOver) {
        status = absl::CancelledError("the caller went away");
      }
      state_ = step.next;
      action = step.action;
    }
    Act(event, action, status);
  }

 private:
  void Act(CallEvent event, CallAction action, const absl::Status& status) {
    switch (action) {
      case CallAction::kNone:
      case CallAction::kKeep:
        return;
      case CallAction::kAnnounce:
        return Announce();
      case CallAction::kFetch:
        return Fetch();
      case CallAction::kAwaitGo: {
        bool go = false;
        {
          MutexLock lock(&mu_);
          go = go_;
        }
        if (go) Handle(CallEvent::kGo);
        return;
      }
      case CallAction::kStart:
        return Start();
      case CallAction::kStartLocal:
        trace_.OnStart(service_->options_.clock->Now());
        service_->options_.model->engine()->Submit(std::move(request_), shared_from_this());
        return CancelIfClosing();
      case CallAction::kCancelEngine:
        return service_->options_.model->engine()->Cancel(engine_id());
      case CallAction::kCancelFetch: {
        std::optional<kvtransfer::FetchId> fetch;
        kvtransfer::TransportClient* transport = nullptr;
        {
          MutexLock lock(&mu_);
          fetch = fetch_;  // none: Fetch() is about to set it, and looks at the state then
          transport = transport_;
        }
        if (fetch.has_value()) transport->Cancel(*fetch);
        return;
      }
      case CallAction::kEnd:
        Take().Reset();
        return End(status);
      case CallAction::kImpossible:
        ++service_->impossible_;
        LogError("a bug: an event that this state of a decode call excludes",
                 {{"request", key_.first}, {"event", std::string(Name(event))}});
        return;
    }
  }

  // An abandon may end the stream at any time.
  void Push(v1::DecodeEvent event) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mu_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Push(std::move(event));
  }
  void Put(kvcache::BlockLease lease) {
    MutexLock lock(&mu_);
    lease_ = std::move(lease);
  }
  kvcache::BlockLease Take() {
    MutexLock lock(&mu_);
    return std::move(lease_);
  }
  std::string engine_id() const {
    MutexLock lock(&mu_);
    return engine_id_;
  }

  void Announce() {
    v1::DecodeEvent event;
    v1::Reserved* reserved = event.mutable_reserved();
    bool has_ticket = false;
    {
      MutexLock lock(&mu_);
      reserved->set_blocks(static_cast<uint32_t>(lease_.blocks().size()));
      reserved->set_held_blocks(static_cast<uint32_t>(lease_.num_held()));
      has_ticket = ticket_.has_value();
    }
    reserved->set_reserve_ms(absl::ToDoubleMilliseconds(service_->options_.clock->Now() - begun_));
    Push(std::move(event));
    if (has_ticket) Handle(CallEvent::kTicket);
  }

  void Fetch() {
    kvtransfer::FetchRequest fetch;
    kvcache::BlockLease held = Take();
    fetch.first_block = static_cast<uint32_t>(held.num_held());
    fetch.destination = held.SplitOff(held.num_held());
    fetch.deadline = request_.deadline;
    kvtransfer::TransportClient* transport = nullptr;
    {
      MutexLock lock(&mu_);
      lease_ = std::move(held);
      fetch.ticket = *std::move(ticket_);
      transport = transport_ = service_->TransportFor(fetch.ticket);
      peer_ = fetch.ticket.endpoint().worker_name();
    }
    ++service_->fetching_;
    const kvtransfer::FetchId id = transport->Fetch(
        std::move(fetch),
        [self = shared_from_this()](absl::StatusOr<kvtransfer::FetchResult> result, kvcache::BlockLease destination) {
          self->OnFetched(std::move(result), std::move(destination));
        });
    bool cancel = false;
    {
      MutexLock lock(&mu_);
      fetch_ = id;
      cancel = state_ == CallState::kClosing;
    }
    if (cancel) transport->Cancel(id);
  }

  // The transport's thread.
  void OnFetched(absl::StatusOr<kvtransfer::FetchResult> result, kvcache::BlockLease kv) {
    --service_->fetching_;
    service_->RecordFetch(peer_, transport_->name(), result);
    if (result.ok() && !result->finished) {
      if (absl::Status s = TakeFirstTokens(result->payload); !s.ok()) result = s;
    }
    if (!result.ok()) {
      kv.Reset();
      absl::Status status = result.status();
      // UNAVAILABLE would say that this worker cannot be reached, and it would get no requests for a while.
      if (absl::IsUnavailable(status)) {
        status = absl::AbortedError(absl::StrCat("the KV of prefill worker ", peer_, " cannot be had: ", status.message()));
      }
      return Handle(CallEvent::kFetchFailed, std::move(status));
    }
    {
      MutexLock lock(&mu_);
      lease_.Join(std::move(kv));
    }
    v1::DecodeEvent event;
    v1::Fetched* fetched = event.mutable_fetched();
    const kvtransfer::FetchStats& stats = result->stats;
    trace_.OnFetched(service_->options_.clock->Now(), peer_, stats);
    fetched->set_bytes(stats.bytes);
    fetched->set_blocks(stats.blocks);
    fetched->set_transfer_ms(absl::ToDoubleMilliseconds(stats.duration));
    fetched->set_posting_ms(absl::ToDoubleMilliseconds(stats.posting));
    fetched->set_waiting_ms(absl::ToDoubleMilliseconds(stats.waiting));
    fetched->set_transport(stats.transport);
    fetched->set_detail(stats.detail);
    fetched->set_finished(result->finished);
    for (const engine::SampledToken& token : first_tokens_) fetched->add_first_token_ids(token.token_id);
    Push(std::move(event));
    Handle(result->finished ? CallEvent::kFinished : CallEvent::kFetched);
  }

  absl::Status TakeFirstTokens(const std::string& payload) {
    v1::FirstTokens first;
    if (!first.ParseFromString(payload)) {
      return absl::DataLossError("what came with the KV is not the prompt's first tokens; prefill again");
    }
    absl::StatusOr<std::vector<engine::SampledToken>> tokens = engine::FirstTokensFromProto(
        first.tokens(), request_.sampling.n, service_->options_.model->limits().vocab_size);
    if (!tokens.ok()) {
      return absl::DataLossError(absl::StrCat("the first tokens that came with the KV make no sense: ",
                                              tokens.status().message()));
    }
    first_tokens_ = *std::move(tokens);
    return absl::OkStatus();
  }

  void Start() {
    kvcache::BlockLease kv;
    {
      MutexLock lock(&mu_);
      kv = std::move(lease_);
      for (engine::SampledToken& token : first_tokens_) {
        const bool ended = ended_choices_.count(static_cast<uint32_t>(token.choice_index)) > 0;
        if (ended && token.finish_reason == engine::FinishReason::kNone) {
          token.finish_reason = engine::FinishReason::kStop;
        }
      }
    }
    trace_.OnStart(service_->options_.clock->Now());
    service_->options_.model->engine()->SubmitDecode(std::move(request_), std::move(kv), std::move(first_tokens_),
                                                     shared_from_this());
    CancelIfClosing();
  }

  // After a submission: an abandon before it went to an engine that did not know the request yet.
  void CancelIfClosing() {
    std::string id;
    {
      MutexLock lock(&mu_);
      if (state_ != CallState::kClosing) return;
      id = engine_id_;
    }
    service_->options_.model->engine()->Cancel(id);
  }

  void End(const absl::Status& status) {
    service_->Forget(key_, this);
    trace_.End(key_.first, key_.second, status, service_->options_.clock->Now());
    if (!status.ok()) service_->options_.engine_metrics->OnRefused(status);
    LogDebug("decode ended", {{"request", key_.first}, {"epoch", key_.second}, {"code", RuleFor(status.code()).name}});
    std::shared_ptr<Stream> stream;  // its callback holds this object
    {
      MutexLock lock(&mu_);
      stream = std::move(stream_);
    }
    stream->Finish(status);
    if (last_token_ != absl::InfinitePast()) service_->options_.engine_metrics->OnStopped(last_token_);
  }

  DecodeService* const service_;
  const CallKey key_;
  const size_t prompt_tokens_;
  const absl::Time begun_;
  // Set before the engine is asked, moved to it in the end; no two of the steps that use them run at once.
  engine::Request request_;
  std::vector<engine::SampledToken> first_tokens_;
  absl::Time last_token_ = absl::InfinitePast();
  DecodeTrace trace_;  // as the above
  std::optional<v1::Ticket> history_;
  // Written under mu_, before the fetch that reads them.
  kvtransfer::TransportClient* transport_ = nullptr;
  std::string peer_;

  mutable Mutex mu_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // null once ended
  CallState state_ ABSL_GUARDED_BY(mu_) = CallState::kReserving;
  absl::Status why_ ABSL_GUARDED_BY(mu_);  // kClosing: the call's end
  std::string engine_id_ ABSL_GUARDED_BY(mu_);
  kvcache::BlockLease lease_ ABSL_GUARDED_BY(mu_);  // while no fetch and no engine has it; during a fetch, what is held
  std::optional<v1::Ticket> ticket_ ABSL_GUARDED_BY(mu_);
  bool go_ ABSL_GUARDED_BY(mu_) = false;
  std::set<uint32_t> ended_choices_ ABSL_GUARDED_BY(mu_);
  std::optional<kvtransfer::FetchId> fetch_ ABSL_GUARDED_BY(mu_);
};

DecodeService::DecodeService(const Options& options)
    : options_(options), layout_(kvtransfer::LayoutToProto(options.model->kv_layout())) {
  auto* fetching = &options.metrics->Gauge("baton_kv_fetches_in_flight", "Fetches that run now");
  auto* impossible = &options.metrics->Counter("baton_decode_impossible_events_total",
                                               "Events that a decode call's state excludes; always 0");
  collect_ = options.metrics->OnCollect([this, fetching, impossible] {
    fetching->Set(fetching_);
    RaiseTo(impossible, static_cast<double>(impossible_));
  });
  options.model->engine()->AfterSteps([feeds = feeds_] { feeds->Flush(); });
}

DecodeService::~DecodeService() {
  // The server is down, so every call was cancelled; engine and transport let go of the last ones within a step.
  while (open_calls_ > 0) absl::SleepFor(absl::Milliseconds(1));
  options_.model->engine()->AfterSteps(nullptr);
}

kvtransfer::TransportClient* DecodeService::TransportFor(const v1::Ticket& ticket) const {
  if (auto it = options_.transports.find(ticket.endpoint().transport()); it != options_.transports.end()) {
    return it->second;
  }
  for (const v1::Endpoint& endpoint : ticket.fallbacks()) {
    if (auto it = options_.transports.find(endpoint.transport()); it != options_.transports.end()) return it->second;
  }
  return nullptr;
}

absl::Status DecodeService::CheckTicket(const v1::Ticket& ticket, const Call& call) const {
  if (absl::Status s = kvtransfer::CheckTicketForFetch(options_.key, ticket, options_.model->kv_layout(),
                                                       options_.model->fingerprint());
      !s.ok()) {
    return s;
  }
  // Authentic, but is it this request's? Decoding on another prompt's KV would give wrong tokens with an OK.
  const auto& [request_id, epoch] = call.key();
  if (ticket.request_id() != request_id || ticket.epoch() != epoch) {
    return absl::PermissionDeniedError(absl::StrCat("the ticket is for request \"", ticket.request_id(), "\" epoch ",
                                                    ticket.epoch(), ", not for \"", request_id, "\" epoch ", epoch));
  }
  if (ticket.num_tokens() != call.prompt_tokens()) {
    return InvalidField("ticket.num_tokens", absl::StrCat(ticket.num_tokens(), ", but the prompt has ",
                                                          call.prompt_tokens(), " tokens"));
  }
  if (TransportFor(ticket) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the prefill worker ", ticket.endpoint().worker_name(),
                                                      " offers transport \"", ticket.endpoint().transport(),
                                                      "\", which this worker does not have"));
  }
  return absl::OkStatus();
}

absl::Status DecodeService::Begin(const v1::DecodeRequest& request, absl::Time deadline,
                                  const std::shared_ptr<Call>& call) {
  absl::StatusOr<engine::Request> parsed =
      engine::RequestFromProto(request.request_id(), request.prompt_token_ids(), request.sampling(), request.tenant(),
                               deadline, options_.model->limits());
  if (!parsed.ok()) return parsed.status();
  if (absl::Status s = options_.model->Constrain(request.sampling(), &*parsed); !s.ok()) return s;
  absl::StatusOr<std::vector<std::vector<int32_t>>> resume = engine::ResumeFromProto(
      request.resume(), parsed->sampling.n, parsed->sampling.max_tokens, options_.model->limits());
  if (!resume.ok()) return resume.status();
  parsed->resume = *std::move(resume);
  for (const uint32_t choice : request.ended_choices()) {
    if (choice >= static_cast<uint32_t>(parsed->sampling.n)) {
      return InvalidField("ended_choices", absl::StrCat(choice, " of ", parsed->sampling.n, " choices"));
    }
    parsed->ended_choices.push_back(static_cast<int>(choice));
  }
  // The number keeps two calls apart that name the same attempt.
  parsed->request_id = absl::StrCat(request.request_id(), "#", request.epoch(), ".", next_call_++);
  {
    // Of two calls that name the same attempt, the later is the one that its caller still knows of.
    MutexLock lock(&mu_);
    calls_[{request.request_id(), request.epoch()}] = call;
  }
  if (request.local_prefill()) {
    call->RunLocally(*std::move(parsed));
  } else {
    call->Reserve(*std::move(parsed), request.wait_for_go());
  }
  return absl::OkStatus();
}

std::shared_ptr<DecodeService::Call> DecodeService::Find(const CallKey& key) {
  MutexLock lock(&mu_);
  const auto it = calls_.find(key);
  return it == calls_.end() ? nullptr : it->second;
}

void DecodeService::Forget(const CallKey& key, const Call* call) {
  std::shared_ptr<Call> last;  // goes without the lock
  MutexLock lock(&mu_);
  const auto it = calls_.find(key);
  if (it == calls_.end() || it->second.get() != call) return;
  last = std::move(it->second);
  calls_.erase(it);
}

void DecodeService::RecordFetch(const std::string& peer, absl::string_view name,
                                const absl::StatusOr<kvtransfer::FetchResult>& result) {
  Metrics* metrics = options_.metrics;
  const std::string by = result.ok() ? result->stats.transport : std::string(name);
  const MetricLabels transport = {{"transport", by}};
  // Peers are workers that hold the cluster's key, so their number is bounded by the cluster's size.
  const MetricLabels pair = {{"peer", peer}, {"transport", by}};
  if (!result.ok()) {
    const char* code = RuleFor(result.status().code()).name;
    MetricLabels labels = transport;
    labels["code"] = code;
    metrics->Counter("baton_kv_fetch_failures_total", "Fetches that failed, by status code", labels).Increment();
    MetricLabels of_pair = pair;
    of_pair["code"] = code;
    metrics->Counter("baton_kv_pair_failures_total", "Fetches from one worker that failed, by status code", of_pair)
        .Increment();
    return;
  }
  const kvtransfer::FetchStats& stats = result->stats;
  metrics->Counter("baton_kv_received_bytes_total", "KV bytes fetched and verified", transport)
      .Increment(static_cast<double>(stats.bytes));
  metrics->Histogram("baton_kv_fetch_bytes", "KV bytes of one fetch", ByteBuckets(), transport)
      .Observe(static_cast<double>(stats.bytes));
  metrics->Histogram("baton_kv_fetch_seconds", "Seconds of one fetch, checks included", LatencyBuckets(), transport)
      .Observe(absl::ToDoubleSeconds(stats.duration));
  metrics->Counter("baton_kv_pair_bytes_total", "KV bytes fetched from one worker", pair)
      .Increment(static_cast<double>(stats.bytes));
  metrics->Counter("baton_kv_pair_fetches_total", "Fetches from one worker", pair).Increment();
  const auto seconds = [&](const char* what, absl::Duration d) {
    MetricLabels labels = pair;
    labels["phase"] = what;
    metrics
        ->Counter("baton_kv_pair_seconds_total",
                  "Seconds of fetches from one worker: posting (its checksums and sends, within moving), moving, and "
                  "waiting for blocks that were not computed yet",
                  labels)
        .Increment(absl::ToDoubleSeconds(d));
  };
  seconds("posting", stats.posting);
  seconds("moving", stats.moving());
  seconds("waiting", stats.waiting);
  if (stats.bytes > 0) {
    metrics->Gauge("baton_kv_pair_bytes_per_second", "Of the latest fetch from one worker, while bytes moved", pair)
        .Set(stats.gigabytes_per_second() * 1e9);
  }
}

grpc::ServerWriteReactor<v1::DecodeEvent>* DecodeService::Decode(grpc::CallbackServerContext* context,
                                                                 const v1::DecodeRequest* request) {
  std::shared_ptr<rpc::StreamWriter<v1::DecodeEvent>> writer;
  const MakeStream make_own = [&writer](std::function<void()> on_cancel) {
    writer = rpc::StreamWriter<v1::DecodeEvent>::Create({}, std::move(on_cancel));
    return writer;
  };
  Serve(*request, rpc::DeadlineOf(*context), [&](std::function<void()> on_cancel) {
    return feeds_->Stream(request->feed(), make_own, std::move(on_cancel));
  }, tracing::FromCall(*context));
  return writer.get();
}

grpc::ServerWriteReactor<v1::FeedBatch>* DecodeService::Feed(grpc::CallbackServerContext* context,
                                                             const v1::FeedRequest* request) {
  return feeds_->Open(context, *request);
}

void DecodeService::Serve(const v1::DecodeRequest& request, absl::Time deadline, const MakeStream& make_stream,
                          const std::optional<tracing::SpanContext>& trace, const v1::Ticket* ticket) {
  options_.engine_metrics->OnRequest();
  auto call = std::make_shared<Call>(this, request, trace);
  call->OpenStream(make_stream);
  if (absl::Status s = Begin(request, deadline, call); !s.ok()) return call->Handle(CallEvent::kNoRoom, s);
  if (ticket != nullptr) TakeTicket(*ticket, call).IgnoreError();  // the call ends with it
}

absl::Status DecodeService::TakeTicket(const v1::Ticket& ticket, const std::shared_ptr<Call>& call) const {
  if (absl::Status s = CheckTicket(ticket, *call); !s.ok()) {
    call->BadTicket(s);
    return s;
  }
  call->Ticket(ticket);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* DecodeService::UpdateDecode(grpc::CallbackServerContext* context,
                                                      const v1::UpdateDecodeRequest* request,
                                                      v1::UpdateDecodeResponse*) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(Update(*request)));
  return reactor;
}

absl::Status DecodeService::Update(const v1::UpdateDecodeRequest& request) {
  const std::shared_ptr<Call> call = Find({request.request_id(), request.epoch()});
  if (call == nullptr) {
    return absl::NotFoundError(absl::StrCat("no decode of request \"", request.request_id(), "\" epoch ",
                                            request.epoch(), " runs here"));
  }
  if (request.has_ticket()) {
    if (absl::Status s = TakeTicket(request.ticket(), call); !s.ok()) return s;
  }
  if (request.go()) call->Go(request.ended_choices());
  return absl::OkStatus();
}

v1::WorkerLoad DecodeService::load() const { return engine::LoadToProto(options_.model->engine()->load()); }
v1::PrefixReport DecodeService::prefixes(uint64_t version) const {
  return engine::PrefixesToProto(options_.model->engine()->prefixes_since(version));
}
void DecodeService::Drain() {
  options_.model->engine()->Drain();
  feeds_->Drain();
}
bool DecodeService::idle() const { return open_calls_ == 0 && options_.model->engine()->Idle(); }

}  // namespace baton::decode_worker
