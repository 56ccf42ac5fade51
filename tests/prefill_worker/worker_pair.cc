#include "tests/prefill_worker/worker_pair.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ids.h"
#include "common/rpc/channel.h"
#include "engine/request_proto.h"
#include "kvtransfer/loopback.h"
#include "kvtransfer/ucx_transport.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::testing {

void Gate::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
}
void Gate::Open() {
  MutexLock lock(&mu_);
  closed_ = false;
  cv_.SignalAll();
}
void Gate::AwaitArrival() {
  MutexLock lock(&mu_);
  while (waiting_ == 0) cv_.Wait(&mu_);
}
void Gate::Pass() {
  MutexLock lock(&mu_);
  ++waiting_;
  cv_.SignalAll();
  while (closed_) cv_.Wait(&mu_);
  --waiting_;
}

namespace {

std::unique_ptr<engine::LoadedModel> LoadModel(const std::string& path, const PairOptions& pair,
                                               engine::EngineMetrics* metrics, Gate* gate) {
  v1::Config config;
  config.set_model(path);
  config.set_kv_memory_mib(static_cast<uint64_t>(pair.kv_mib));
  config.set_threads(1);
  if (pair.model.empty()) {
    config.set_block_size(8);
    config.set_isa("scalar");
  }
  config.set_max_batch_tokens(static_cast<uint32_t>(pair.max_batch_tokens));
  engine::LoadedModel::Options options;
  options.on_forward = [metrics, gate](const engine::ForwardTiming& timing) {
    if (metrics != nullptr) metrics->OnForward(timing);
    if (gate != nullptr) gate->Pass();
  };
  auto model = engine::LoadedModel::Load(config, options);
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    abort();
  }
  return *std::move(model);
}

bool Quiet(engine::LoadedModel* model) {
  const kvcache::Ledger ledger = model->engine()->load().ledger;
  return ledger.Balanced() && ledger.active == 0 && ledger.leased == 0 && ledger.quarantined == 0 &&
         model->engine()->Idle();
}

class CollectingSink : public engine::RequestSink {
 public:
  explicit CollectingSink(int n) : tokens_(n) {}
  void OnToken(const engine::SampledToken& token) override { tokens_[token.choice_index].push_back(token.token_id); }
  void OnDone(const absl::Status& status, const engine::RequestStats&) override {
    MutexLock lock(&mu_);
    status_ = status;
    done_ = true;
    cv_.SignalAll();
  }
  std::vector<std::vector<int32_t>> Wait() {
    MutexLock lock(&mu_);
    while (!done_) cv_.Wait(&mu_);
    EXPECT_TRUE(status_.ok()) << status_;
    return tokens_;
  }

 private:
  std::vector<std::vector<int32_t>> tokens_;
  Mutex mu_;
  CondVar cv_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

WorkerPair::WorkerPair(const PairOptions& options) {
  const std::string tiny = absl::StrCat(::testing::TempDir(), "/tiny-", getpid(), ".gguf");
  const std::string path = options.model.empty() ? tiny : options.model;
  if (absl::Status s = fakes::WriteTinyGguf({}, tiny); !s.ok()) ADD_FAILURE() << s;
  prefill_model_ = LoadModel(path, options, &prefill_engine_metrics_, &prefill_gate_);
  decode_model_ = LoadModel(path, options, &decode_engine_metrics_, &decode_gate_);
  oracle_ = LoadModel(path, options, nullptr, nullptr);
  prefill_collect_ = prefill_engine_metrics_.Attach(prefill_model_.get());
  decode_collect_ = decode_engine_metrics_.Attach(decode_model_.get());
  unlink(tiny.c_str());

  exporter_ =
      std::make_unique<kvtransfer::Exporter>(kvtransfer::Exporter::Options{.worker_name = "prefill-0",
                                                                           .incarnation = NewIncarnation(),
                                                                           .key = key_,
                                                                           .layout = prefill_model_->kv_layout(),
                                                                           .fingerprint = prefill_model_->fingerprint(),
                                                                           .reap_interval = absl::Milliseconds(10),
                                                                           .block_tags = options.tags});
  const kvtransfer::ReceiverOptions receiver{.key = key_,
                                             .layout = decode_model_->kv_layout(),
                                             .fingerprint = decode_model_->fingerprint(),
                                             .consumer = NewIncarnation(),
                                             .require_tags = options.tags};
  if (options.transport == "ucx") {
    auto server = kvtransfer::UcxServer::Start(exporter_.get());
    auto client = kvtransfer::UcxClient::Start(receiver);
    if (!server.ok() || !client.ok()) ADD_FAILURE() << server.status() << client.status();
    transport_server_ = *std::move(server);
    transport_client_ = *std::move(client);
  } else {
    transport_server_ = kvtransfer::MakeLoopbackServer(exporter_.get());
    transport_client_ = kvtransfer::MakeLoopbackClient(receiver, options.link_bytes_per_second);
  }
  const kvtransfer::ReceiverOptions history_receiver{
      .key = key_, .layout = prefill_model_->kv_layout(), .fingerprint = prefill_model_->fingerprint()};
  history_exporter_ =
      std::make_unique<kvtransfer::Exporter>(kvtransfer::Exporter::Options{.worker_name = "decode-0",
                                                                           .incarnation = NewIncarnation(),
                                                                           .key = key_,
                                                                           .layout = decode_model_->kv_layout(),
                                                                           .fingerprint = decode_model_->fingerprint(),
                                                                           .reap_interval = absl::Milliseconds(10)});
  history_server_ = kvtransfer::MakeLoopbackServer(history_exporter_.get());
  history_client_ = kvtransfer::MakeLoopbackClient(history_receiver);
  prefill_service_ = std::make_unique<prefill_worker::PrefillService>(
      prefill_worker::PrefillService::Options{.model = prefill_model_.get(),
                                              .exporter = exporter_.get(),
                                              .engine_metrics = &prefill_engine_metrics_,
                                              .metrics = &prefill_metrics_,
                                              .lease = options.lease,
                                              .transports = {{"loopback", history_client_.get()}},
                                              .key = key_});
  decode_service_ = std::make_unique<decode_worker::DecodeService>(
      decode_worker::DecodeService::Options{.model = decode_model_.get(),
                                            .transports = {{options.transport, transport_client_.get()}},
                                            .key = key_,
                                            .engine_metrics = &decode_engine_metrics_,
                                            .metrics = &decode_metrics_,
                                            .exporter = options.history ? history_exporter_.get() : nullptr});
  auto prefill_server = rpc::Server::Start({}, {{"baton.v1.PrefillWorker", prefill_service_.get()}});
  auto decode_server = rpc::Server::Start({}, {{"baton.v1.DecodeWorker", decode_service_.get()}});
  if (!prefill_server.ok() || !decode_server.ok()) {
    ADD_FAILURE() << prefill_server.status() << decode_server.status();
    abort();
  }
  prefill_server_ = *std::move(prefill_server);
  decode_server_ = *std::move(decode_server);
  prefill_stub_ = v1::PrefillWorker::NewStub(rpc::CreateChannel(prefill_server_->address()));
  decode_stub_ = v1::DecodeWorker::NewStub(rpc::CreateChannel(decode_server_->address()));
}

WorkerPair::~WorkerPair() {
  prefill_gate_.Open();
  decode_gate_.Open();
  prefill_server_->Shutdown(absl::ZeroDuration());
  decode_server_->Shutdown(absl::ZeroDuration());
  exporter_->ReleaseAll();
  history_exporter_->ReleaseAll();
  EXPECT_TRUE(AwaitQuiet()) << PrefillMetrics() << DecodeMetrics();
  prefill_service_.reset();
  decode_service_.reset();
  transport_client_->Shutdown();
  transport_server_->Shutdown();
  history_client_->Shutdown();
  history_server_->Shutdown();
}

WorkerPair::PrefillCall::PrefillCall(WorkerPair* pair, const v1::PrefillRequest& request, absl::Duration timeout)
    : pair_(pair) {
  rpc::SetDeadline(&context_, absl::Now() + timeout);
  thread_ = std::thread([this, request] { Read(request); });
}
WorkerPair::PrefillCall::~PrefillCall() {
  Cancel();
  thread_.join();
}
void WorkerPair::PrefillCall::Read(const v1::PrefillRequest& request) {
  auto stream = pair_->prefill_stub_->Prefill(&context_, request);
  v1::PrefillEvent event;
  while (stream->Read(&event)) {
    MutexLock lock(&mu_);
    if (event.has_ticket()) {
      EXPECT_TRUE(first_tokens.empty()) << "a ticket after the first token";
      ticket = event.ticket();
      has_ticket_ = true;
    }
    if (event.has_token()) {
      EXPECT_FALSE(has_prefilled_) << "a token after Prefilled";
      if (first_tokens.empty()) first_token_at = absl::Now();
      first_tokens.push_back(event.token());
    }
    if (event.has_prefilled()) {
      prefilled = event.prefilled();
      has_prefilled_ = true;
    }
    cv_.SignalAll();
  }
  const grpc::Status status = stream->Finish();
  MutexLock lock(&mu_);
  status_ = status;
  ended_ = true;
  cv_.SignalAll();
}
bool WorkerPair::PrefillCall::AwaitTicket() {
  MutexLock lock(&mu_);
  while (!has_ticket_ && !ended_) cv_.Wait(&mu_);
  return has_ticket_;
}
bool WorkerPair::PrefillCall::AwaitPrefilled() {
  MutexLock lock(&mu_);
  while (!has_prefilled_ && !ended_) cv_.Wait(&mu_);
  return has_prefilled_;
}
grpc::Status WorkerPair::PrefillCall::Wait() {
  MutexLock lock(&mu_);
  while (!ended_) cv_.Wait(&mu_);
  return status_;
}

WorkerPair::DecodeCall::DecodeCall(WorkerPair* pair, const v1::DecodeRequest& request, absl::Duration timeout,
                                   std::function<void(grpc::ClientContext*)> on_event)
    : pair_(pair), on_event_(std::move(on_event)) {
  rpc::SetDeadline(&context_, absl::Now() + timeout);
  thread_ = std::thread([this, request] { Read(request); });
}
WorkerPair::DecodeCall::~DecodeCall() {
  Cancel();
  thread_.join();
}
void WorkerPair::DecodeCall::Read(const v1::DecodeRequest& request) {
  auto stream = pair_->decode_stub_->Decode(&context_, request);
  v1::DecodeEvent event;
  while (stream->Read(&event)) {
    {
      MutexLock lock(&mu_);
      if (event.has_reserved()) {
        reserved = event.reserved();
        has_reserved_ = true;
      }
      if (event.has_fetched()) {
        EXPECT_TRUE(has_reserved_ && tokens.empty());
        fetched = event.fetched();
        has_fetched = true;
      }
      if (event.has_token()) {
        if (tokens.empty()) first_token_at = absl::Now();
        tokens.push_back(event.token());
      }
      if (event.has_done()) {
        done = event.done();
        has_done = true;
      }
      cv_.SignalAll();
    }
    if (on_event_) on_event_(&context_);
  }
  const grpc::Status status = stream->Finish();
  MutexLock lock(&mu_);
  status_ = status;
  ended_ = true;
  cv_.SignalAll();
}
bool WorkerPair::DecodeCall::AwaitReserved() {
  MutexLock lock(&mu_);
  while (!has_reserved_ && !ended_) cv_.Wait(&mu_);
  return has_reserved_;
}
grpc::Status WorkerPair::DecodeCall::Wait() {
  MutexLock lock(&mu_);
  while (!ended_) cv_.Wait(&mu_);
  return status_;
}

v1::DecodeRequest WorkerPair::Matching(const v1::PrefillRequest& request) {
  v1::DecodeRequest next;
  next.set_request_id(request.request_id());
  next.set_epoch(request.epoch());
  *next.mutable_prompt_token_ids() = request.prompt_token_ids();
  *next.mutable_sampling() = request.sampling();
  next.set_tenant(request.tenant());
  return next;
}

grpc::Status WorkerPair::Update(const v1::UpdateDecodeRequest& request) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(30));
  v1::UpdateDecodeResponse response;
  return decode_stub_->UpdateDecode(&context, request, &response);
}

grpc::Status WorkerPair::Present(const v1::PrefillRequest& request, const v1::Ticket& ticket) {
  v1::UpdateDecodeRequest update;
  update.set_request_id(request.request_id());
  update.set_epoch(request.epoch());
  *update.mutable_ticket() = ticket;
  return Update(update);
}

grpc::Status WorkerPair::ImportHistory(const v1::PrefillRequest& request, const std::vector<int32_t>& ids,
                                       const v1::Ticket& ticket, v1::ImportHistoryResponse* response) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(30));
  v1::ImportHistoryRequest import;
  import.set_request_id(request.request_id());
  import.set_epoch(request.epoch());
  import.set_tenant(request.tenant());
  import.mutable_token_ids()->Assign(ids.begin(), ids.end());
  *import.mutable_ticket() = ticket;
  return prefill_stub_->ImportHistory(&context, import, response);
}

std::vector<std::vector<int32_t>> WorkerPair::Generate(const v1::PrefillRequest& request) {
  const int n = std::max(1, request.sampling().n());
  std::vector<std::vector<int32_t>> ids(n);
  DecodeCall decode(this, Matching(request));
  EXPECT_TRUE(decode.AwaitReserved()) << decode.Wait().error_message();
  PrefillCall prefill(this, request);
  EXPECT_TRUE(prefill.AwaitTicket()) << prefill.Wait().error_message();
  const grpc::Status presented = Present(request, prefill.ticket);
  EXPECT_TRUE(presented.ok()) << presented.error_message();
  EXPECT_TRUE(prefill.AwaitPrefilled());
  bool goes_on = false;
  for (const auto& token : prefill.first_tokens) {
    ids[token.choice_index()].push_back(token.token_id());
    goes_on = goes_on || token.finish_reason() == v1::FINISH_REASON_UNSPECIFIED;
  }
  const grpc::Status decoded = decode.Wait();
  EXPECT_TRUE(decoded.ok()) << decoded.error_message();
  EXPECT_TRUE(prefill.Wait().ok()) << "the KV was fetched";
  EXPECT_EQ(decode.fetched.finished(), !goes_on);
  EXPECT_EQ(decode.has_done, goes_on);
  EXPECT_TRUE(goes_on || decode.tokens.empty());
  for (const auto& token : decode.tokens) {
    EXPECT_EQ(token.token_index(), ids[token.choice_index()].size());
    ids[token.choice_index()].push_back(token.token_id());
  }
  return ids;
}

std::vector<std::vector<int32_t>> WorkerPair::Oracle(const v1::PrefillRequest& request) {
  auto parsed = engine::RequestFromProto(request.request_id(), request.prompt_token_ids(), request.sampling(),
                                         request.tenant(), absl::InfiniteFuture(), oracle_->limits());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  auto sink = std::make_shared<CollectingSink>(std::max(1, request.sampling().n()));
  oracle_->engine()->Submit(*std::move(parsed), sink);
  return sink->Wait();
}

bool WorkerPair::AwaitQuiet() {
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (absl::Now() < until) {
    if (Quiet(prefill_model_.get()) && Quiet(decode_model_.get())) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

v1::PrefillRequest MakePrefill(const std::string& id, int num_tokens, uint64_t seed) {
  v1::PrefillRequest request;
  request.set_request_id(id);
  request.set_epoch(1);
  request.set_hand_over(true);
  std::mt19937_64 rng(seed);
  for (int i = 0; i < num_tokens; ++i) request.add_prompt_token_ids(static_cast<int32_t>(rng() % 256));
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_ignore_eos(true);
  return request;
}

}  // namespace baton::testing
