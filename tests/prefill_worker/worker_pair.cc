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

std::unique_ptr<engine::LoadedModel> LoadModel(const std::string& path, int kv_mib, engine::EngineMetrics* metrics,
                                               Gate* gate) {
  v1::Config config;
  config.set_model(path);
  config.set_kv_memory_mib(static_cast<uint64_t>(kv_mib));
  config.set_threads(1);
  config.set_block_size(8);
  config.set_isa("scalar");
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
  const std::string path = absl::StrCat(::testing::TempDir(), "/tiny-", getpid(), ".gguf");
  if (absl::Status s = fakes::WriteTinyGguf({}, path); !s.ok()) ADD_FAILURE() << s;
  prefill_model_ = LoadModel(path, options.kv_mib, &prefill_engine_metrics_, &prefill_gate_);
  decode_model_ = LoadModel(path, options.kv_mib, &decode_engine_metrics_, &decode_gate_);
  oracle_ = LoadModel(path, options.kv_mib, nullptr, nullptr);
  prefill_collect_ = prefill_engine_metrics_.Attach(prefill_model_.get());
  decode_collect_ = decode_engine_metrics_.Attach(decode_model_.get());
  unlink(path.c_str());

  exporter_ =
      std::make_unique<kvtransfer::Exporter>(kvtransfer::Exporter::Options{.worker_name = "prefill-0",
                                                                           .incarnation = NewIncarnation(),
                                                                           .key = key_,
                                                                           .layout = prefill_model_->kv_layout(),
                                                                           .fingerprint = prefill_model_->fingerprint(),
                                                                           .reap_interval = absl::Milliseconds(10)});
  const kvtransfer::ReceiverOptions receiver{
      .key = key_, .layout = decode_model_->kv_layout(), .fingerprint = decode_model_->fingerprint()};
  if (options.transport == "ucx") {
    auto server = kvtransfer::UcxServer::Start(exporter_.get());
    auto client = kvtransfer::UcxClient::Start(receiver);
    if (!server.ok() || !client.ok()) ADD_FAILURE() << server.status() << client.status();
    transport_server_ = *std::move(server);
    transport_client_ = *std::move(client);
  } else {
    transport_server_ = kvtransfer::MakeLoopbackServer(exporter_.get());
    transport_client_ = kvtransfer::MakeLoopbackClient(receiver);
  }
  prefill_service_ = std::make_unique<prefill_worker::PrefillService>(
      prefill_worker::PrefillService::Options{.model = prefill_model_.get(),
                                              .exporter = exporter_.get(),
                                              .engine_metrics = &prefill_engine_metrics_,
                                              .metrics = &prefill_metrics_,
                                              .lease = options.lease});
  decode_service_ = std::make_unique<decode_worker::DecodeService>(
      decode_worker::DecodeService::Options{.model = decode_model_.get(),
                                            .transports = {{options.transport, transport_client_.get()}},
                                            .key = key_,
                                            .engine_metrics = &decode_engine_metrics_,
                                            .metrics = &decode_metrics_});
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
  EXPECT_TRUE(AwaitQuiet()) << PrefillMetrics() << DecodeMetrics();
  prefill_service_.reset();
  decode_service_.reset();
  transport_client_->Shutdown();
  transport_server_->Shutdown();
}

WorkerPair::PrefillResult WorkerPair::Prefill(const v1::PrefillRequest& request) {
  PrefillResult result;
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(60));
  auto stream = prefill_stub_->Prefill(&context, request);
  v1::PrefillEvent event;
  while (stream->Read(&event)) {
    if (event.has_token()) {
      EXPECT_FALSE(result.has_prefilled) << "a token after Prefilled";
      result.first_tokens.push_back(event.token());
    }
    if (event.has_prefilled()) {
      result.prefilled = event.prefilled();
      result.has_prefilled = true;
    }
  }
  result.status = stream->Finish();
  return result;
}

WorkerPair::DecodeResult WorkerPair::Decode(const v1::DecodeRequest& request, absl::Duration timeout,
                                            const std::function<void(grpc::ClientContext*)>& on_event) {
  DecodeResult result;
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + timeout);
  auto stream = decode_stub_->Decode(&context, request);
  v1::DecodeEvent event;
  while (stream->Read(&event)) {
    if (event.has_fetched()) {
      EXPECT_TRUE(result.tokens.empty());
      result.fetched = event.fetched();
      result.has_fetched = true;
    }
    if (event.has_token()) result.tokens.push_back(event.token());
    if (event.has_done()) {
      result.done = event.done();
      result.has_done = true;
    }
    if (on_event) on_event(&context);
  }
  result.status = stream->Finish();
  return result;
}

v1::DecodeRequest WorkerPair::Next(const v1::PrefillRequest& request, const PrefillResult& prefilled) {
  v1::DecodeRequest next;
  next.set_request_id(request.request_id());
  next.set_epoch(request.epoch());
  *next.mutable_prompt_token_ids() = request.prompt_token_ids();
  *next.mutable_sampling() = request.sampling();
  next.set_tenant(request.tenant());
  if (prefilled.prefilled.has_ticket()) *next.mutable_ticket() = prefilled.prefilled.ticket();
  next.mutable_first_tokens()->Add(prefilled.first_tokens.begin(), prefilled.first_tokens.end());
  return next;
}

std::vector<std::vector<int32_t>> WorkerPair::Generate(const v1::PrefillRequest& request) {
  const int n = std::max(1, request.sampling().n());
  std::vector<std::vector<int32_t>> ids(n);
  const PrefillResult first = Prefill(request);
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_TRUE(first.has_prefilled);
  bool goes_on = false;
  for (const auto& token : first.first_tokens) {
    ids[token.choice_index()].push_back(token.token_id());
    goes_on = goes_on || token.finish_reason() == v1::FINISH_REASON_UNSPECIFIED;
  }
  EXPECT_EQ(first.prefilled.has_ticket(), goes_on);
  if (!goes_on) return ids;
  const DecodeResult rest = Decode(Next(request, first));
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_TRUE(rest.has_fetched);
  EXPECT_TRUE(rest.has_done);
  for (const auto& token : rest.tokens) {
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
