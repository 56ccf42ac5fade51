// `complete`, `chat` and `status` against a router of this test's own, which misbehaves on request. Runs the real
// binary.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/status_print.h"
#include "common/mutex.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "tests/cli/run_baton.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 60;

// Answers "Hello <n> world", where n is the number of chat messages. What the prompt says decides how.
class FakeInference : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    {
      MutexLock lock(&mu_);
      last_ = *request;
    }
    std::string words = request->prompt();
    if (request->has_chat() && request->chat().messages_size() > 0) {
      words = request->chat().messages(request->chat().messages_size() - 1).content();
    }
    if (words == "refuse") return {grpc::StatusCode::INVALID_ARGUMENT, "prompt: 900 tokens; the context holds 512"};
    if (words == "full") return {grpc::StatusCode::RESOURCE_EXHAUSTED, "every worker is full"};
    v1::GenerateResponse event;
    event.mutable_started()->set_request_id("r-1");
    event.mutable_started()->set_seed(42);
    event.mutable_started()->set_model("fake");
    writer->Write(event);
    Token(writer, 0, "Hello ");
    if (words == "slow") {
      waiting = true;
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      cancelled = true;
      return {grpc::StatusCode::CANCELLED, "the client cancelled the request"};
    }
    if (words == "break") return {grpc::StatusCode::INTERNAL, "decode worker decode-0: its KV was lost"};
    Token(writer, 1, std::to_string(request->chat().messages_size()));
    Token(writer, 2, words == "escape" ? "\x1b[2J" : " wor");
    event.Clear();
    event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
    event.mutable_finished()->set_text("ld");
    event.mutable_finished()->set_stop_token_id(2);
    event.mutable_finished()->set_completion_tokens(3);
    writer->Write(event);
    event.Clear();
    v1::Summary* s = event.mutable_summary();
    s->mutable_usage()->set_prompt_tokens(11);
    s->mutable_usage()->set_cached_tokens(4);
    s->mutable_usage()->set_completion_tokens(3);
    s->mutable_timings()->set_first_token_ms(20.5);
    s->mutable_timings()->set_transfer_ms(1.25);
    s->mutable_timings()->set_total_ms(40.5);
    s->mutable_kv()->set_bytes(368640);
    s->mutable_kv()->set_blocks(1);
    s->mutable_kv()->set_transport("ucx");
    s->mutable_kv()->set_detail("shm/cma");
    s->set_prefill_worker("prefill-0");
    s->set_decode_worker("decode-0");
    s->set_seed(42);
    writer->Write(event);
    return grpc::Status::OK;
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse* r) override {
    r->add_models()->set_name("fake");
    return grpc::Status::OK;
  }

  v1::GenerateRequest last() {
    MutexLock lock(&mu_);
    return last_;
  }

  std::atomic<bool> waiting{false};
  std::atomic<bool> cancelled{false};

 private:
  static void Token(grpc::ServerWriter<v1::GenerateResponse>* writer, uint32_t index, const std::string& text) {
    v1::GenerateResponse event;
    event.mutable_token()->set_token_index(index);
    event.mutable_token()->set_token_id(100 + static_cast<int>(index));
    event.mutable_token()->set_text(text);
    writer->Write(event);
  }
  Mutex mu_;
  v1::GenerateRequest last_;
};

v1::ClusterStatus SomeStatus() {
  v1::ClusterStatus status;
  status.set_model_name("fake");
  status.set_requests_total(7);
  status.mutable_fingerprint()->set_weights(std::string(64, 'a'));
  status.add_refused("prefill-9: layout.dtype is f32, the cluster's is f16");
  v1::ClusterWorker* w = status.add_workers();
  w->set_state("ready");
  w->mutable_info()->set_name("prefill-0");
  w->mutable_info()->set_role("prefill");
  w->mutable_info()->set_address("127.0.0.1:7001");
  v1::KvLedger* l = w->mutable_load()->mutable_ledger();
  l->set_total(10);
  l->set_free(4);
  l->set_active(3);
  l->set_leased(2);
  l->set_cached(1);
  return status;
}

class FakeCluster : public v1::Cluster::Service {
  grpc::Status GetClusterStatus(grpc::ServerContext*, const v1::GetClusterStatusRequest*,
                                v1::ClusterStatus* status) override {
    *status = SomeStatus();
    return grpc::Status::OK;
  }
};

class RemoteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&inference_);
    builder.RegisterService(&cluster_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    router_ = "127.0.0.1:" + std::to_string(port);
  }
  void TearDown() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::vector<std::string> Args(const std::string& command, std::vector<std::string> more) {
    more.insert(more.begin(), {command, "--router", router_});
    return more;
  }
  bool WaitFor(const std::atomic<bool>& flag) {
    for (int i = 0; i < 3000 && !flag; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return flag;
  }

  FakeInference inference_;
  FakeCluster cluster_;
  std::unique_ptr<grpc::Server> server_;
  std::string router_;
};

TEST_F(RemoteTest, CompleteStreamsTextAndSummarises) {
  const Result r = RunBaton(Args("complete", {"Hi"}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "Hello 0 world\n");
  for (const char* word : {"prefill-0", "decode-0", "368,640 bytes", "ucx shm/cma", "TTFT 20.5 ms", "100.0 tokens/s",
                           "11 prompt (4 cached)", "finish: stop", "seed 42"}) {
    EXPECT_NE(r.err.find(word), std::string::npos) << word << "\n" << r.err;
  }
}

TEST_F(RemoteTest, CompleteJson) {
  const Result r = RunBaton(Args("complete", {"Hi", "--json"}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["text"], "Hello 0 world");
  EXPECT_EQ(json["token_ids"], Json::parse("[100,101,102]"));
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["kv"]["bytes"], 368640);
  EXPECT_EQ(json["kv"]["transport"], "ucx");
  EXPECT_EQ(json["workers"]["decode"], "decode-0");
  EXPECT_EQ(json["timings_ms"]["transfer"], 1.25);
}

TEST_F(RemoteTest, EverySamplingFlagReachesTheRouter) {
  RunBaton(Args("complete", {"Hi",
                             "--temperature",
                             "0.25",
                             "--top-p",
                             "0.5",
                             "--top-k",
                             "40",
                             "--min-p",
                             "0.125",
                             "--repetition-penalty",
                             "1.5",
                             "--presence-penalty",
                             "-1",
                             "--frequency-penalty",
                             "0.5",
                             "--logit-bias",
                             "5=-2",
                             "--logit-bias",
                             "6=3",
                             "--seed",
                             "18446744073709551615",
                             "--max-tokens",
                             "9",
                             "--min-tokens",
                             "2",
                             "--ignore-eos",
                             "--stop",
                             "a b",
                             "--stop",
                             "c",
                             "--stop-token-id",
                             "8",
                             "--logprobs",
                             "3",
                             "--n",
                             "2",
                             "--include-stop",
                             "--priority",
                             "batch",
                             "--request-id",
                             "me-1"}));
  const v1::GenerateRequest request = inference_.last();
  const v1::SamplingParams& s = request.sampling();
  EXPECT_EQ(request.priority(), v1::PRIORITY_BATCH);
  EXPECT_EQ(request.request_id(), "me-1");
  EXPECT_EQ(request.prompt(), "Hi");
  EXPECT_EQ(s.temperature(), 0.25f);
  EXPECT_EQ(s.top_p(), 0.5f);
  EXPECT_EQ(s.top_k(), 40);
  EXPECT_EQ(s.min_p(), 0.125f);
  EXPECT_EQ(s.repetition_penalty(), 1.5f);
  EXPECT_EQ(s.presence_penalty(), -1.0f);
  EXPECT_EQ(s.frequency_penalty(), 0.5f);
  EXPECT_EQ(s.logit_bias().at(5), -2.0f);
  EXPECT_EQ(s.logit_bias().at(6), 3.0f);
  EXPECT_EQ(s.seed(), UINT64_MAX);
  EXPECT_EQ(s.max_tokens(), 9);
  EXPECT_EQ(s.min_tokens(), 2);
  EXPECT_TRUE(s.ignore_eos());
  ASSERT_EQ(s.stop_size(), 2);
  EXPECT_EQ(s.stop(0), "a b");
  EXPECT_EQ(s.stop_token_ids(0), 8);
  EXPECT_EQ(s.logprobs(), 3);
  EXPECT_EQ(s.n(), 2);
  EXPECT_TRUE(s.include_stop_str_in_output());
}

TEST_F(RemoteTest, ChatFlagSendsMessages) {
  RunBaton(Args("complete", {"--chat", "--system", "be brief", "Hi"}));
  const v1::GenerateRequest request = inference_.last();
  ASSERT_EQ(request.chat().messages_size(), 2);
  EXPECT_EQ(request.chat().messages(0).role(), "system");
  EXPECT_EQ(request.chat().messages(1).content(), "Hi");
}

TEST_F(RemoteTest, CtrlCCancelsTheCallAndExits130) {
  BatonProcess baton(Args("complete", {"slow"}));
  ASSERT_TRUE(WaitFor(inference_.waiting));
  ASSERT_TRUE(baton.WaitForOutput("Hello", kPatience));
  baton.Signal(SIGINT);
  const Result r = baton.Wait(kPatience);
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_EQ(r.out, "Hello \n");
  EXPECT_TRUE(WaitFor(inference_.cancelled));
}

TEST_F(RemoteTest, ErrorsOfTheRouterAreShownWithTheirCodes) {
  const Result refused = RunBaton(Args("complete", {"refuse"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("900 tokens; the context holds 512"), std::string::npos) << refused.err;
  const Result full = RunBaton(Args("complete", {"full", "--json"}));
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(Json::parse(full.out, nullptr, false)["error"]["code"], "RESOURCE_EXHAUSTED");
  const Result broken = RunBaton(Args("complete", {"break"}));
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_EQ(broken.out, "Hello \n");
  EXPECT_NE(broken.err.find("its KV was lost"), std::string::npos) << broken.err;
}

TEST_F(RemoteTest, ATimeoutIsTheRequestsDeadline) {
  const Result r = RunBaton(Args("complete", {"slow", "--timeout", "0.5"}));
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("--timeout"), std::string::npos) << r.err;
  EXPECT_TRUE(WaitFor(inference_.cancelled));
}

TEST(NoRouterTest, EveryCommandSuggestsUp) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"complete", "--router", "127.0.0.1:1", "Hi"},
                                               {"chat", "--router", "127.0.0.1:1"},
                                               {"bench", "--router", "127.0.0.1:1"},
                                               {"tokenize", "--router", "127.0.0.1:1", "x"},
                                               {"detokenize", "--router", "127.0.0.1:1", "1"},
                                               {"status", "--router", "127.0.0.1:1"}}) {
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 1) << args[0];
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("No router answers at 127.0.0.1:1"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("baton up"), std::string::npos) << r.err;
  }
}

TEST_F(RemoteTest, ChatKeepsHistoryUntilReset) {
  const Result r = RunBaton(Args("chat", {"--system", "be brief"}),
                            "Hi\nagain\n/stats\n/reset\nnew\n/nonsense\n/help\n/quit\nnever\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  // Messages: system + user; then + assistant + user; after the reset system + user again.
  EXPECT_EQ(r.out, "Hello 2 world\nHello 4 world\nHello 2 world\n");
  EXPECT_NE(r.err.find("22 prompt tokens (8 cached)"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("no command /nonsense"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("/reset"), std::string::npos) << r.err;
  EXPECT_EQ(inference_.last().chat().messages(1).content(), "new");
}

TEST_F(RemoteTest, ChatSettingsChangeTheNextRequest) {
  const Result r = RunBaton(Args("chat", {"--seed", "1"}),
                            "/system Be kind.\n/seed 7\n/temperature 0.5\n/max-tokens 9\n/max-tokens 1.5\n/seed x\nHi\n"
                            "/history\n/seed\n/top-p 0.25\nagain\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "Hello 2 world\nHello 4 world\n");
  for (const char* words : {"\"1.5\" is no value of /max-tokens", "\"x\" is no value of /seed", "system: Be kind.",
                            "assistant: Hello 2 world"}) {
    EXPECT_NE(r.err.find(words), std::string::npos) << words << "\n" << r.err;
  }
  const v1::GenerateRequest last = inference_.last();
  EXPECT_FALSE(last.sampling().has_seed());
  EXPECT_EQ(last.sampling().temperature(), 0.5f);
  EXPECT_EQ(last.sampling().top_p(), 0.25f);
  EXPECT_EQ(last.sampling().max_tokens(), 9);
  EXPECT_EQ(last.chat().messages(0).content(), "Be kind.");
}

TEST_F(RemoteTest, ChatWithAFailedRequestGoesOnAndExitsOne) {
  const Result r = RunBaton(Args("chat", {}), "full\nHi\n");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.out, "Hello 1 world\n") << "the message that failed must not stay in the conversation";
}

TEST_F(RemoteTest, ChatJsonIsALineAnAnswer) {
  const Result r = RunBaton(Args("chat", {"--json"}), "Hi\nagain\n");
  EXPECT_EQ(r.exit_code, 0);
  const size_t newline = r.out.find('\n');
  EXPECT_EQ(Json::parse(r.out.substr(0, newline), nullptr, false)["text"], "Hello 1 world");
  EXPECT_EQ(Json::parse(r.out.substr(newline + 1), nullptr, false)["text"], "Hello 3 world");
}

TEST_F(RemoteTest, CtrlCInChatStopsTheAnswerOnly) {
  BatonProcess baton(Args("chat", {}), "slow\nHi\n");
  ASSERT_TRUE(WaitFor(inference_.waiting));
  ASSERT_TRUE(baton.WaitForOutput("Hello", kPatience));
  baton.Signal(SIGINT);
  const Result r = baton.Wait(kPatience);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(WaitFor(inference_.cancelled));
  EXPECT_EQ(r.out, "Hello \nHello 3 world\n");  // slow, "Hello ", Hi
  EXPECT_NE(r.err.find("stopped"), std::string::npos) << r.err;
}

TEST_F(RemoteTest, StatusTableAndJson) {
  const Result words = RunBaton(Args("status", {}));
  EXPECT_EQ(words.exit_code, 0) << words.err;
  for (const char* word : {"fake", "prefill-0", "ready", "127.0.0.1:7001", "layout.dtype is f32", "aaaaaaaaaaaaaaaa"}) {
    EXPECT_NE(words.out.find(word), std::string::npos) << word << "\n" << words.out;
  }
  const Result r = RunBaton(Args("status", {"--json"}));
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["workers"][0]["kv"]["free"], 4);
  EXPECT_EQ(json["workers"][0]["kv"]["adds_up"], true);
  EXPECT_EQ(json["workers"][0]["state"], "ready");
  EXPECT_EQ(json["requests"]["total"], 7);
  EXPECT_EQ(json["refused"].size(), 1u);
}

TEST(StatusPrintTest, ALedgerThatDoesNotAddUpIsSaid) {
  v1::ClusterStatus status = SomeStatus();
  status.mutable_workers(0)->mutable_load()->mutable_ledger()->set_free(5);
  EXPECT_NE(FormatStatus(status, "x").find("do not add up"), std::string::npos);
  EXPECT_EQ(FormatStatus(SomeStatus(), "x").find("do not add up"), std::string::npos);
}

TEST(StatusPrintTest, WordsOfPeersCannotDriveTheTerminal) {
  v1::ClusterStatus status = SomeStatus();
  status.mutable_workers(0)->mutable_info()->set_name("evil\x1b[2J");
  EXPECT_EQ(FormatStatus(status, "x").find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace baton::cli
