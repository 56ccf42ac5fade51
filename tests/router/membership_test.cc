// Workers coming and going, health, drain and limits, through a real router.
#include <grpcpp/impl/client_unary_call.h>

#include <atomic>
#include <thread>

#include "common/rpc/heartbeat.h"
#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

using fakes::Pause;
using fakes::Script;
using fakes::ScriptedWorker;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MembershipTest : public RouterFixture {
 protected:
  // grpc.health.v1.Health/Check of `service`, without its generated code: 1 is SERVING, 2 NOT_SERVING.
  int Health(const std::string& service) {
    grpc::ClientContext context;
    std::string request;
    if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    grpc::Slice slice(request);
    grpc::ByteBuffer in(&slice, 1), out;
    const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer> call(channel_.get(), method, &context, in,
                                                                                   &out);
    if (!call.status().ok()) return -static_cast<int>(call.status().error_code());
    std::vector<grpc::Slice> slices;
    out.Dump(&slices);
    std::string bytes;
    for (const grpc::Slice& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    return bytes.size() == 2 && bytes[0] == 8 ? bytes[1] : 0;
  }
  v1::ClusterStatus Status() {
    grpc::ClientContext context;
    v1::ClusterStatus status;
    EXPECT_TRUE(cluster_->GetClusterStatus(&context, {}, &status).ok());
    return status;
  }
};

TEST_F(MembershipTest, HealthIsServingWithOneWorkerOfEachRole) {
  StartRouter();
  EXPECT_EQ(Health(""), 2);
  AddWorker("p0", "prefill");
  EXPECT_EQ(Health(""), 2);
  AddWorker("d0", "decode");
  EXPECT_EQ(Health(""), 1);
  EXPECT_EQ(Health("baton.v1.Inference"), 1);
  EXPECT_EQ(Health("liveness"), 1);
  EXPECT_EQ(Health("unknown"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  grpc::ClientContext context;
  v1::DeregisterRequest gone;
  gone.set_name("d0");
  gone.set_incarnation(workers_[1]->info().incarnation());
  v1::DeregisterResponse response;
  ASSERT_TRUE(cluster_->Deregister(&context, gone, &response).ok());
  EXPECT_EQ(Health(""), 2);
  EXPECT_EQ(Health("liveness"), 1);
}

TEST_F(MembershipTest, AForeignModelIsRefusedWithEachFieldAndShownToOperators) {
  StartRouter();
  AddWorker("p0", "prefill");
  ScriptedWorker stranger("d9", "decode", &book_);
  v1::WorkerInfo info = Info(stranger);
  info.mutable_fingerprint()->set_weights("other");
  info.mutable_layout()->set_dtype("f32");
  const absl::Status refused = Register(info);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("worker d9 differs from the cluster (worker p0)"),
                    HasSubstr("fingerprint.weights (ours weights, theirs other)"),
                    HasSubstr("layout.dtype (ours f16, theirs f32)"), HasSubstr("same model file")));
  info = Info(stranger);
  info.mutable_fingerprint()->set_tokenizer("x");
  EXPECT_THAT(std::string(Register(info).message()), HasSubstr("differs from the router in fingerprint.tokenizer"));
  const v1::ClusterStatus status = Status();
  ASSERT_EQ(status.refused_size(), 2);
  EXPECT_THAT(status.refused(0), HasSubstr("layout.dtype (ours f16, theirs f32)"));
  ASSERT_EQ(status.workers_size(), 1);
  EXPECT_EQ(status.workers(0).state(), "ready");
  EXPECT_EQ(status.model_name(), "tiny");
  EXPECT_THAT(metrics_.Expose(), HasSubstr("baton_worker_refusals_total 2"));
}

TEST_F(MembershipTest, ANewIncarnationTakesTheRequestsOfTheOldOneElsewhere) {
  StartRouter();
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  ScriptedWorker* frozen = AddWorker("d0", "decode", script);
  std::thread restart([&] {
    Eventually([&] { return frozen->paused() == 1; });
    AddWorker("d0", "decode");  // another incarnation; the old one hangs and still is there
  });
  const Answer answer = Generate(Prompt("hello", 20));
  restart.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "abcdefghijklmnopqrst");
  EXPECT_TRUE(Eventually([&] { return frozen->open() == 0; })) << "the fenced one's call is cancelled";
}

TEST_F(MembershipTest, AFrozenWorkerIsLostAndItsRequestsGoElsewhere) {
  config_.set_worker_timeout_ms(400);
  config_.set_heartbeat_ms(50);
  StartRouter();
  std::vector<std::unique_ptr<rpc::Heartbeat>> beats;
  const auto beat = [&](ScriptedWorker* worker) {
    rpc::HeartbeatOptions options;
    options.router = router_->address();
    options.worker = Info(*worker);
    options.load = [] { return v1::WorkerLoad(); };
    options.on_change = [](const absl::Status&) {};
    beats.push_back(std::make_unique<rpc::Heartbeat>(std::move(options)));
  };
  beat(AddWorker("p0", "prefill"));
  Script script;
  script.pause = Pause::kInDecode;
  ScriptedWorker* frozen = AddWorker("d0", "decode", script);  // sends no heartbeat
  std::thread helper([&] {
    Eventually([&] { return frozen->paused() == 1; });
    beat(AddWorker("d1", "decode"));
  });
  const Answer answer = Generate(Prompt("hello", 20));
  helper.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "abcdefghijklmnopqrst");
  EXPECT_EQ(answer.summary.decode_worker(), "d1");
  bool lost = false;
  const v1::ClusterStatus status = Status();
  for (const v1::ClusterWorker& worker : status.workers()) {
    if (worker.info().name() == "d0") lost = worker.state() == "lost";
  }
  EXPECT_TRUE(lost);
  beats.clear();
}

TEST_F(MembershipTest, DrainFinishesWhatRunsAndRefusesWhatComes) {
  StartRouter();
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  Answer running;
  std::thread client([&] { running = Generate(Prompt("hello", 20)); });
  Eventually([&] { return d0->paused() == 1; });
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    EXPECT_TRUE(router_->Drain().ok());
    drained = true;
  });
  EXPECT_TRUE(Eventually([&] { return Health("") == 2; }));
  const Answer refused = Generate(Prompt());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("draining"));
  EXPECT_TRUE(RetryAfterOf(refused.status).has_value());
  EXPECT_FALSE(drained);
  d0->Resume();
  client.join();
  drain.join();
  EXPECT_TRUE(running.status.ok()) << running.status;
  EXPECT_EQ(running.text.at(0), "abcdefghijklmnopqrst");
}

TEST_F(MembershipTest, StoppingEndsWhatRunsWithUnavailableAndGivesTheTicketBack) {
  StartRouter();
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kBeforeFetch;
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  Answer running;
  std::thread client([&] { running = Generate(Prompt("hello", 20)); });
  Eventually([&] { return d0->paused() == 1; });
  router_.reset();
  client.join();
  EXPECT_EQ(running.status.code(), absl::StatusCode::kUnavailable) << running.status;
  // Not at once: the workers hear of the end when the router is gone already.
  EXPECT_TRUE(Eventually([&] { return book_.outstanding() == 0 && d0->open() == 0; }));
}

TEST_F(MembershipTest, TheQueueIsBoundedAndSaysWhenToComeBack) {
  config_.set_max_queue(2);
  StartRouter();
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  std::vector<std::thread> clients;
  std::vector<Answer> answers(2);
  for (Answer& answer : answers) clients.emplace_back([&] { answer = Generate(Prompt()); });
  Eventually([&] { return d0->paused() == 2; });
  const Answer refused = Generate(Prompt());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterOf(refused.status), absl::Seconds(1));
  EXPECT_EQ(Status().requests_in_flight(), 2u);
  d0->Resume();
  for (std::thread& client : clients) client.join();
  for (const Answer& answer : answers) EXPECT_TRUE(answer.status.ok()) << answer.status;
  d0->set_script({});
  EXPECT_TRUE(Generate(Prompt()).status.ok()) << "and then there is room again";
}

TEST_F(MembershipTest, ARequestWithoutADeadlineGetsTheDefaultOne) {
  config_.set_default_deadline_ms(300);
  StartRouter();
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  AddWorker("d0", "decode", script);
  const Answer answer = Generate(Prompt(), absl::InfiniteDuration());
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded) << answer.status;
}

TEST_F(MembershipTest, TextServicesNeedNoWorker) {
  StartRouter();
  grpc::ClientContext c1, c2, c3, c4, c5;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hi there");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(inference_->Tokenize(&c1, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.max_context(), 512u);
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(&c2, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hi there");
  detokenize.add_token_ids(1 << 20);
  EXPECT_EQ(inference_->Detokenize(&c3, detokenize, &text).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  tokenize.set_model("other");
  EXPECT_EQ(inference_->Tokenize(&c4, tokenize, &tokens).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::ListModelsResponse models;
  ASSERT_TRUE(inference_->ListModels(&c5, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "tiny");
  EXPECT_EQ(models.models(0).architecture(), "llama");
  EXPECT_EQ(models.models(0).max_context(), 512u);
}

TEST_F(MembershipTest, MetricsNameTheStationsAndCountOutcomes) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  ASSERT_TRUE(Generate(Prompt()).status.ok());
  EXPECT_FALSE(Generate(Prompt("")).status.ok());
  const std::string text = metrics_.Expose();
  EXPECT_THAT(text, HasSubstr("baton_requests_total{code=\"OK\"} 1"));
  EXPECT_THAT(text, HasSubstr("baton_requests_total{code=\"INVALID_ARGUMENT\"} 1"));
  for (const char* station : {"tokenize", "prefill", "emit", "stop"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("baton_station_seconds_count{station=\"", station, "\"} 1")));
  }
  EXPECT_THAT(text, HasSubstr("baton_generated_tokens_total 8"));
  EXPECT_THAT(text, HasSubstr("baton_kv_bytes_total{transport=\"loopback\"} 4096"));
  EXPECT_THAT(text, HasSubstr("baton_requests_in_flight 0"));
  EXPECT_THAT(text, HasSubstr("baton_workers{role=\"decode\",state=\"ready\"} 1"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"tiny\"} 1"));
  EXPECT_THAT(text, HasSubstr("baton_inter_token_latency_seconds_count 7"));
}

TEST_F(MembershipTest, APortInUseAndAMissingModelAreTypedErrors) {
  StartRouter();
  v1::Config second = config_;
  second.set_listen(router_->address());
  Metrics metrics;
  const auto in_use = Router::Start(second, &metrics, Clock::Real());
  EXPECT_EQ(in_use.status().code(), absl::StatusCode::kAlreadyExists) << in_use.status();
  second = config_;
  second.set_model("/nowhere.gguf");
  EXPECT_EQ(Router::Start(second, &metrics, Clock::Real()).status().code(), absl::StatusCode::kNotFound);
  second.clear_model();
  EXPECT_EQ(Router::Start(second, &metrics, Clock::Real()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::router
