// The driver alone, with a client that takes whatever comes; and what its metrics say.
#include "router/request_driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"

namespace baton::router {
namespace {

class AnyClient final : public ClientStream {
  void Push(v1::GenerateResponse) override {}
  void Finish(absl::Status) override {}
};

class NoText final : public TextMaker {
 public:
  std::unique_ptr<ChoiceText> NewChoice(const v1::SamplingParams&) const override { return std::make_unique<Choice>(); }
  std::string TokenBytes(int32_t) const override { return ""; }

 private:
  struct Choice final : ChoiceText {
    TextPiece Push(int32_t) override { return {}; }
    TextPiece PushStop(int32_t) override { return {}; }
    TextPiece Flush() override { return {}; }
  };
};

// Timers that never go off, and something that happens while one is made.
class StoppingTimers final : public Timers {
 public:
  std::unique_ptr<Timer> After(absl::Duration, std::function<void()>) override {
    auto timer = std::make_unique<Counted>(&running_);
    if (meanwhile) meanwhile();
    return timer;
  }
  int running() const { return running_; }
  std::function<void()> meanwhile;

 private:
  struct Counted final : Timer {
    explicit Counted(std::atomic<int>* number) : running(number) { ++*running; }
    ~Counted() override { --*running; }
    std::atomic<int>* const running;
  };
  std::atomic<int> running_{0};
};

// Such a request stayed in the table for ever: it held its id and a place in the queue. A short deadline on a busy router
// was enough.
TEST(RequestDriverTest, ADeadlineThatPassesBeforeTheTableHasTheRequestLeavesNothingInIt) {
  Metrics metrics;
  RouterMetrics router_metrics(&metrics, "tiny", "fingerprint");
  RequestTable table(10);
  ClusterView view({}, Clock::Real(), [](const WorkerId&, const std::string&) {});
  Placement placement(&view, Clock::Real(), PlacementOptions{});
  DriverContext context;
  context.table = &table;
  context.placement = &placement;
  context.metrics = &router_metrics;
  context.clock = Clock::Real();
  std::shared_ptr<RequestDriver> driver =
      RequestDriver::Create(&context, "a", absl::Now() - absl::Seconds(1),
                            [](const std::shared_ptr<RequestDriver>&) { return std::make_unique<AnyClient>(); });
  absl::SleepFor(absl::Milliseconds(300));  // whatever waits for the deadline runs
  ASSERT_TRUE(table.Add("a", driver).ok());
  driver->Reject(absl::InvalidArgumentError("anything that ends the request"));
  EXPECT_TRUE(table.WaitUntilNoneRuns(absl::Seconds(5)));
  driver.reset();
  table.WaitUntilGone();
}

// A router that stopped while a request was still being tokenized ended it on one thread while another one put its deadline's
// timer into the same place: a race, and a timer that outlived the request.
TEST(RequestDriverTest, AStopWhileARequestIsAdmittedLeavesNoTimer) {
  Metrics metrics;
  RouterMetrics router_metrics(&metrics, "tiny", "fingerprint");
  RequestTable table(10);
  ClusterView view({}, Clock::Real(), [](const WorkerId&, const std::string&) {});
  Placement placement(&view, Clock::Real(), PlacementOptions{});
  const NoText text;
  StoppingTimers timers;
  DriverContext context;
  context.table = &table;
  context.placement = &placement;
  context.metrics = &router_metrics;
  context.text = &text;
  context.clock = Clock::Real();
  context.timers = &timers;
  const auto make = [&](const std::string& key) {
    std::shared_ptr<RequestDriver> driver =
        RequestDriver::Create(&context, key, absl::Now() + absl::Hours(1),
                              [](const std::shared_ptr<RequestDriver>&) { return std::make_unique<AnyClient>(); });
    EXPECT_TRUE(table.Add(key, driver).ok());
    return driver;
  };
  AdmittedRequest request;
  request.prompt_token_ids = {1, 2, 3};
  std::shared_ptr<RequestDriver> driver = make("a");
  timers.meanwhile = [&] { driver->Stop(); };
  driver->Admit(request);
  EXPECT_TRUE(table.WaitUntilNoneRuns(absl::ZeroDuration()));
  EXPECT_EQ(timers.running(), 0) << "the request is over";
  // At the same time, for the thread sanitizer.
  timers.meanwhile = nullptr;
  for (int i = 0; i < 200; ++i) {
    driver = make(absl::StrCat(i));
    std::thread stopper([&] { driver->Stop(); });
    driver->Admit(request);
    stopper.join();
    EXPECT_TRUE(table.WaitUntilNoneRuns(absl::Seconds(5)));
    EXPECT_EQ(timers.running(), 0);
  }
  driver.reset();
  table.WaitUntilGone();
}

class JudgedTest : public ::testing::Test {
 protected:
  void Judge(const absl::Status& status, uint32_t prompt_tokens, absl::Duration ttft = absl::Milliseconds(100),
             std::vector<float> itl_ms = {}) {
    RequestStats stats;
    stats.prompt_tokens = prompt_tokens;
    stats.ttft = ttft;
    stats.itl_ms = std::move(itl_ms);
    router_metrics_.Judged(status, stats, {absl::Milliseconds(200), absl::Milliseconds(50)});
  }
  // What baton_goodput_requests_total counts there.
  double Goodput(const std::string& length, const std::string& outcome) {
    return metrics_.Counter("baton_goodput_requests_total", "", {{"prompt_tokens", length}, {"outcome", outcome}}).Value();
  }
  double Refused(const std::string& reason) {
    return metrics_.Counter("baton_requests_refused_total", "", {{"reason", reason}}).Value();
  }
  Metrics metrics_;
  RouterMetrics router_metrics_{&metrics_, "tiny", "fingerprint"};
};

TEST_F(JudgedTest, ByLengthOfPromptAndWhatWasPromised) {
  Judge(absl::OkStatus(), 1);
  Judge(absl::OkStatus(), 256, absl::Milliseconds(200));
  EXPECT_EQ(Goodput("1-256", "met"), 2);
  Judge(absl::OkStatus(), 257, absl::Milliseconds(201));
  EXPECT_EQ(Goodput("257-1024", "missed"), 1) << "its first token was late";
  std::vector<float> gaps(100, 50);
  gaps[3] = 51;
  Judge(absl::OkStatus(), 1024, absl::Milliseconds(100), gaps);
  EXPECT_EQ(Goodput("257-1024", "met"), 1) << "one gap of a hundred may be longer";
  gaps[4] = 51;
  Judge(absl::OkStatus(), 1025, absl::Milliseconds(100), gaps);
  EXPECT_EQ(Goodput("1025-4096", "missed"), 1);
  Judge(absl::InternalError("broke"), 4097);
  EXPECT_EQ(Goodput("4097-", "missed"), 1);
  Judge(WithReason(absl::ResourceExhaustedError("too busy"), "PREDICTED_ITL"), 4096);
  EXPECT_EQ(Goodput("1025-4096", "refused"), 1);
  EXPECT_EQ(Refused("PREDICTED_ITL"), 1);
  Judge(WithReason(absl::DeadlineExceededError("would be too late"), "PREDICTED_TTFT"), 5000);
  EXPECT_EQ(Goodput("4097-", "refused"), 1);
  EXPECT_EQ(Refused("PREDICTED_TTFT"), 1);
  Judge(absl::ResourceExhaustedError("every worker was full"), 10);
  EXPECT_EQ(Goodput("1-256", "refused"), 1);
  EXPECT_EQ(Refused("WORKERS_FULL"), 1);
  Judge(absl::CancelledError("the client went away"), 10);
  EXPECT_EQ(Goodput("1-256", "missed"), 0);
}

// max_queue refuses before the prompt is tokenized, and such refusals were counted nowhere.
TEST_F(JudgedTest, ARefusalBeforeThePromptIsTokenizedCounts) {
  Judge(WithReason(absl::ResourceExhaustedError("100 requests are in flight"), "QUEUE_FULL"), 0);
  EXPECT_EQ(Refused("QUEUE_FULL"), 1);
  EXPECT_EQ(Goodput("unknown", "refused"), 1);
  Judge(absl::InvalidArgumentError("no prompt"), 0);
  Judge(absl::ResourceExhaustedError("the template does too much for these messages"), 0);
  EXPECT_EQ(Refused("WORKERS_FULL"), 0);
  EXPECT_EQ(Goodput("unknown", "missed"), 0);
  EXPECT_EQ(Goodput("unknown", "refused"), 1);
}

// KV that moved by gRPC was counted as "other".
TEST(RouterMetricsTest, TransportsHaveTheirOwnNamesAndWorkersCannotMakeUpMore) {
  Metrics metrics;
  RouterMetrics router_metrics(&metrics, "tiny", "fingerprint");
  for (const char* transport : {"ucx", "grpc", "made up by a worker"}) {
    router_metrics.Started();
    RequestStats stats;
    stats.kv.set_transport(transport);
    stats.kv.set_bytes(7);
    router_metrics.Ended(absl::OkStatus(), stats, absl::ZeroDuration());
  }
  const std::string text = metrics.Expose();
  for (const char* transport : {"ucx", "grpc", "other"}) {
    EXPECT_NE(text.find(absl::StrCat("baton_kv_bytes_total{transport=\"", transport, "\"} 7")), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("made up"), std::string::npos);
}

}  // namespace
}  // namespace baton::router
