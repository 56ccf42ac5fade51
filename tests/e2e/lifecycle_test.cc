// Cancel, deadlines, drain, early ends and refusals, on a real cluster of the packaged model.
#include <signal.h>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

v1::GenerateRequest Ask(const std::string& prompt, int max_tokens) {
  v1::GenerateRequest request;
  request.set_prompt(prompt);
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(true);
  return request;
}

class LifecycleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=128"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = cluster->release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  // Nothing may be left behind by any test.
  void TearDown() override {
    if (cluster_ == nullptr) return;
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
  uint64_t DecodeSteps() {
    for (auto& worker : cluster_->workers()) {
      if (worker->name.rfind("decode", 0) == 0) return cluster_->WorkerStatusOf(*worker)->load().steps();
    }
    return 0;
  }
  static Cluster* cluster_;
};
Cluster* LifecycleTest::cluster_ = nullptr;

TEST_F(LifecycleTest, AnswersOverUcxAndSaysWhereItRan) {
  Generation g = cluster_->Generate(Ask("The capital of France is", 16));
  ASSERT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(g.violation, "");
  EXPECT_EQ(g.choices[0].token_ids.size(), 16u);
  EXPECT_NE(g.choices[0].text.find("Paris"), std::string::npos) << g.choices[0].text;
  EXPECT_EQ(g.choices[0].finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(g.summary.kv().transport(), "ucx");
  EXPECT_GT(g.summary.kv().bytes(), 0u);
  EXPECT_EQ(g.summary.prefill_worker(), "prefill-0");
  EXPECT_EQ(g.summary.decode_worker(), "decode-1");
  EXPECT_EQ(g.summary.usage().completion_tokens(), 16u);
  EXPECT_GT(g.summary.timings().first_token_ms(), 0);
}

TEST_F(LifecycleTest, OneTokenNeverCostsADecodeStep) {
  const uint64_t before = DecodeSteps();
  Generation g = cluster_->Generate(Ask("The capital of France is", 1));
  ASSERT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(g.choices[0].token_ids.size(), 1u);
  EXPECT_EQ(g.summary.decode_worker(), "");
  EXPECT_EQ(DecodeSteps(), before);
}

TEST_F(LifecycleTest, StopStringInTheFirstTokenNeverCostsADecodeStep) {
  Generation free_run = cluster_->Generate(Ask("The capital of France is", 1));
  ASSERT_TRUE(free_run.status.ok());
  v1::GenerateRequest request = Ask("The capital of France is", 20);
  request.mutable_sampling()->add_stop(free_run.choices[0].text);
  const uint64_t before = DecodeSteps();
  Generation g = cluster_->Generate(request);
  ASSERT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(g.choices[0].finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(g.choices[0].finished.stop_string(), free_run.choices[0].text);
  EXPECT_EQ(g.choices[0].text, "");
  EXPECT_EQ(g.summary.usage().completion_tokens(), 1u);
  EXPECT_LE(DecodeSteps(), before);
}

TEST_F(LifecycleTest, TokensArriveOneByOneNotAtTheEnd) {
  absl::Time first, last;
  int events = 0;
  Generation g = cluster_->Generate(Ask("Count to one hundred: one, two,", 48), absl::Seconds(60),
                                    [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
                                      if (!event.has_token()) return;
                                      last = absl::Now();
                                      if (events++ == 0) first = last;
                                    });
  ASSERT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(events, 48);
  // Buffered until the end, the first and the last would arrive together; 47 steps of a real model take longer than this.
  EXPECT_GT(last - first, absl::Milliseconds(20));
}

TEST_F(LifecycleTest, ClientGoneStopsTheWorkAndFreesBothSides) {
  for (int cancel_at : {0, 1, 2, 10}) {
    int tokens = 0;
    Generation g = cluster_->Generate(Ask("Tell me a long story.", 2000), absl::Seconds(60),
                                      [&](grpc::ClientContext* context, const v1::GenerateResponse& event) {
                                        tokens += event.has_token();
                                        if (tokens >= cancel_at) context->TryCancel();
                                      });
    EXPECT_EQ(g.status.error_code(), grpc::StatusCode::CANCELLED);
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(10));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
}

TEST_F(LifecycleTest, DeadlinePassedStopsTheWorkAndFreesBothSides) {
  for (int ms : {1, 30, 200}) {
    Generation g = cluster_->Generate(Ask("Tell me a long story.", 4000), absl::Milliseconds(ms));
    EXPECT_EQ(g.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(10));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
}

TEST_F(LifecycleTest, SameSeedSameAnswerDifferentSeedsDiffer) {
  v1::GenerateRequest request = Ask("Once upon a time", 24);
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->set_seed(1);
  const auto a = cluster_->Generate(request).choices[0].token_ids;
  const auto b = cluster_->Generate(request).choices[0].token_ids;
  request.mutable_sampling()->set_seed(2);
  const auto c = cluster_->Generate(request).choices[0].token_ids;
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST_F(LifecycleTest, ChosenSeedIsReportedAndReproduces) {
  v1::GenerateRequest request = Ask("Once upon a time", 24);
  request.mutable_sampling()->set_temperature(1.0f);
  Generation g = cluster_->Generate(request);
  ASSERT_TRUE(g.status.ok());
  request.mutable_sampling()->set_seed(g.summary.seed());
  EXPECT_EQ(cluster_->Generate(request).choices[0].token_ids, g.choices[0].token_ids);
}

TEST_F(LifecycleTest, ChoicesDifferAndDoNotDependOnTheirNumber) {
  v1::GenerateRequest request = Ask("Once upon a time", 16);
  request.mutable_sampling()->set_temperature(1.2f);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_n(2);
  Generation two = cluster_->Generate(request);
  request.mutable_sampling()->set_n(4);
  Generation four = cluster_->Generate(request);
  ASSERT_TRUE(two.status.ok() && four.status.ok()) << four.status.error_message();
  EXPECT_EQ(two.choices[0].token_ids, four.choices[0].token_ids);
  EXPECT_EQ(two.choices[1].token_ids, four.choices[1].token_ids);
  EXPECT_NE(four.choices[0].token_ids, four.choices[1].token_ids);
}

TEST(DrainTest, SigtermFinishesRunningRequestsAndExitsZero) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .prefill = 2, .decode = 2, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  int tokens = 0;
  Generation g = (*cluster)->Generate(Ask("Tell me a story.", 200), absl::Seconds(100),
                                      [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
                                        tokens += event.has_token();
                                        if (tokens != 5) return;
                                        ++tokens;
                                        for (auto& worker : (*cluster)->workers()) {
                                          if (worker->name == "prefill-0" || worker->name == "decode-2") {
                                            worker->process->Signal(SIGTERM);
                                          }
                                        }
                                      });
  EXPECT_TRUE(g.status.ok()) << g.status.error_message();
  EXPECT_EQ(g.choices[0].token_ids.size(), 200u);
  for (auto& worker : (*cluster)->workers()) {
    if (worker->name != "prefill-0" && worker->name != "decode-2") continue;
    auto code = worker->process->WaitExit(absl::Seconds(40));
    ASSERT_TRUE(code.ok()) << worker->name << ": " << code.status();
    EXPECT_EQ(*code, 0) << worker->process->stderr_text();
  }
  // The others serve on.
  Generation after = (*cluster)->Generate(Ask("And then?", 8));
  EXPECT_TRUE(after.status.ok()) << after.status.error_message();
  (*cluster)->router().Signal(SIGTERM);
  auto code = (*cluster)->router().WaitExit(absl::Seconds(40));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

TEST(RefusalTest, MissingPoolIsSaidByName) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .prefill = 1, .decode = 0, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  Generation g = (*cluster)->Generate(Ask("Hello", 8));
  EXPECT_EQ(g.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(g.status.error_message().find("decode"), std::string::npos) << g.status.error_message();
}

TEST(RefusalTest, OtherKvLayoutIsRefusedFieldByField) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .prefill = 1, .decode = 0, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = Process::Start({"decode_worker/decode_worker", "--model=" + SmolLm2(), "--router=" + (*cluster)->router_address(),
                                "--name=odd", "--block-size=32", "--kv-dtype=bf16", "--kv-memory-mib=64",
                                "--cluster-key-file=" + (*cluster)->key_path()});
  ASSERT_TRUE(worker.ok());
  auto code = (*worker)->WaitExit(absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_NE(*code, 0);
  const std::string said = (*worker)->stderr_text();
  EXPECT_NE(said.find("block_size"), std::string::npos) << said;
  EXPECT_NE(said.find("dtype"), std::string::npos) << said;
  auto status = (*cluster)->Status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->workers_size(), 1);
  EXPECT_GE(status->refused_size(), 1);
}

TEST(RefusalTest, PortInUseNamesThePort) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .prefill = 0, .decode = 0});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto second = Process::Start({"router/router", "--model=" + SmolLm2(), "--listen=" + (*cluster)->router_address(),
                                "--http=127.0.0.1:0"});
  ASSERT_TRUE(second.ok());
  auto code = (*second)->WaitExit(absl::Seconds(30));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_NE(*code, 0);
  EXPECT_NE((*second)->stderr_text().find((*cluster)->router_address()), std::string::npos) << (*second)->stderr_text();
}

// Bug: it was said only after the model was loaded and the process had called itself ready.
TEST(RefusalTest, AWrongMembershipSettingIsSaidBeforeTheModelIsLoaded) {
  for (const char* program : {"router/router", "prefill_worker/prefill_worker", "decode_worker/decode_worker"}) {
    auto process = Process::Start({program, "--model=/nowhere.gguf", "--membership=kubernetes"});
    ASSERT_TRUE(process.ok());
    auto code = (*process)->WaitExit(absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_NE(*code, 0);
    const std::string said = (*process)->stderr_text();
    EXPECT_NE(said.find("kubernetes_service"), std::string::npos) << program << ": " << said;
  }
}

TEST(RefusalTest, ModelThatDoesNotFitSaysTheArithmetic) {
  auto worker = Process::Start({"prefill_worker/prefill_worker", "--model=" + SmolLm2(), "--kv-memory-mib=16000000",
                                "--router=127.0.0.1:1"});
  ASSERT_TRUE(worker.ok());
  auto code = (*worker)->WaitExit(absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_NE(*code, 0);
  EXPECT_NE((*worker)->stderr_text().find("weights"), std::string::npos) << (*worker)->stderr_text();
}

}  // namespace
}  // namespace baton::e2e
