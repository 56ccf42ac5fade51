// Workers that join: nothing but the router's own generation until that has passed.
#include <algorithm>

#include "absl/strings/match.h"
#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

class WarmUpTest : public RouterFixture {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    config_.set_warm_up(true);
  }
  WorkerState StateOf(const std::string& name) {
    for (const WorkerSnapshot& worker : router_->view()->Snapshot()) {
      if (worker.id.name == name) return worker.state;
    }
    return WorkerState::kLost;
  }
  template <typename Requests>
  static int OfClients(const Requests& requests) {
    return static_cast<int>(std::count_if(requests.begin(), requests.end(), [](const auto& request) {
      return !absl::StartsWith(request.request_id(), "warm-up-");
    }));
  }
};

TEST_F(WarmUpTest, TheFirstCallOfAWorkerIsTheRoutersOwn) {
  StartRouter();
  fakes::ScriptedWorker* prefill = AddWorker("p0", "prefill");
  fakes::ScriptedWorker* decode = AddWorker("d0", "decode");
  const Answer answer = Generate(Prompt());  // waits until they are warm
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_GE(prefill->prefills().size(), 2u);
  EXPECT_TRUE(absl::StartsWith(prefill->prefills()[0].request_id(), "warm-up-"));
  EXPECT_TRUE(absl::StartsWith(decode->decodes()[0].request_id(), "warm-up-"));
  EXPECT_EQ(OfClients(prefill->prefills()), 1);
  EXPECT_EQ(OfClients(decode->decodes()), 1);
  // Nobody counts it as a request.
  EXPECT_THAT(metrics_.Expose(), ::testing::HasSubstr("baton_requests_total{code=\"OK\"} 1"));
}

TEST_F(WarmUpTest, AWorkerThatCannotGenerateGetsNoRequests) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  ASSERT_TRUE(Eventually([&] { return router_->view()->Ready(); }));
  fakes::Script broken;
  broken.prefill_error = absl::InternalError("a kernel this machine does not have");
  fakes::ScriptedWorker* p1 = AddWorker("p1", "prefill", broken);
  ASSERT_TRUE(Eventually([&] { return p1->calls() >= 2; })) << "it is tried again";
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Generate(Prompt()).status.ok());
  EXPECT_EQ(OfClients(p1->prefills()), 0);
  EXPECT_EQ(StateOf("p1"), WorkerState::kWarming);
  p1->set_script({});
  EXPECT_TRUE(Eventually([&] { return StateOf("p1") == WorkerState::kReady; }));
}

TEST_F(WarmUpTest, AWorkerWithOtherTokensGetsNoRequests) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  ASSERT_TRUE(Eventually([&] { return router_->view()->Ready(); }));
  fakes::Script other;
  other.texts = {"azzzzzzzzzzz"};  // token 0 is the prefill worker's
  fakes::ScriptedWorker* d1 = AddWorker("d1", "decode", other);
  ASSERT_TRUE(Eventually([&] { return d1->calls() >= 2; }));
  EXPECT_EQ(StateOf("d1"), WorkerState::kWarming);
  EXPECT_EQ(OfClients(d1->decodes()), 0);
}

TEST_F(WarmUpTest, ARestartedWorkerIsTriedAgain) {
  StartRouter();
  AddWorker("p0", "prefill");
  fakes::ScriptedWorker* decode = AddWorker("d0", "decode");
  ASSERT_TRUE(Eventually([&] { return router_->view()->Ready(); }));
  v1::WorkerInfo again = Info(*decode);
  again.set_incarnation("later");
  const int before = decode->calls();
  ASSERT_TRUE(Register(again).ok());
  EXPECT_TRUE(Eventually([&] { return StateOf("d0") == WorkerState::kReady; }));
  EXPECT_GT(decode->calls(), before);
}

}  // namespace
}  // namespace baton::router
