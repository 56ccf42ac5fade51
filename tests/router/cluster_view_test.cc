#include "router/cluster_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace baton::router {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::WorkerInfo Info(const std::string& name, const std::string& role, const std::string& incarnation = "i1") {
  v1::WorkerInfo info;
  info.set_name(name);
  info.set_incarnation(incarnation);
  info.set_role(role);
  info.set_address("127.0.0.1:1");
  info.set_model_name("m");
  info.set_max_context(1024);
  info.set_total_blocks(100);
  info.mutable_fingerprint()->set_weights("w");
  info.mutable_fingerprint()->set_config("c");
  info.mutable_fingerprint()->set_tokenizer("t");
  info.mutable_fingerprint()->set_numerics_class("int");
  info.mutable_layout()->set_dtype("f16");
  info.mutable_layout()->set_block_size(16);
  info.mutable_layout()->set_num_layers(2);
  info.mutable_layout()->set_num_kv_heads(3);
  info.mutable_layout()->set_head_dim(64);
  info.mutable_layout()->set_version(1);
  return info;
}

v1::HeartbeatRequest Beat(const std::string& name, const std::string& incarnation = "i1") {
  v1::HeartbeatRequest beat;
  beat.set_name(name);
  beat.set_incarnation(incarnation);
  return beat;
}

class ClusterViewTest : public ::testing::Test {
 protected:
  ClusterViewTest()
      : view_(Options(), &clock_, [this](const WorkerId& id, const std::string& why) {
          gone_.push_back(id.name + "/" + id.incarnation);
          view_.Snapshot();  // no lock is held here
        }) {}
  static ClusterViewOptions Options() {
    ClusterViewOptions options;
    options.model_name = "m";
    options.tokenizer_fingerprint = "t";
    options.max_workers = 3;
    options.max_refusals = 2;
    options.worker_timeout = absl::Seconds(3);
    return options;
  }

  SimulatedClock clock_;
  std::vector<std::string> gone_;
  ClusterView view_;
};

TEST_F(ClusterViewTest, AWorkersCostAgesWhileItMakesNoStep) {
  ASSERT_TRUE(view_.Register(Info("d0", "decode")).ok());
  v1::HeartbeatRequest beat = Beat("d0");
  const auto aged_after = [&](absl::Duration time, uint64_t steps) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      EXPECT_TRUE(view_.Heartbeat(beat).ok());
    }
    beat.mutable_load()->mutable_cost()->set_samples(steps);
    EXPECT_TRUE(view_.Heartbeat(beat).ok());
    return view_.Snapshot().at(0).cost_aged;
  };
  EXPECT_FALSE(aged_after(absl::ZeroDuration(), 100));
  EXPECT_FALSE(aged_after(absl::Seconds(19), 100));
  EXPECT_TRUE(aged_after(absl::Seconds(1), 100));
  EXPECT_FALSE(aged_after(absl::Seconds(30), 101)) << "a step was made";
  beat.mutable_load()->mutable_prefill_cost()->set_samples(1);
  EXPECT_FALSE(aged_after(absl::Seconds(19), 101));
}

TEST_F(ClusterViewTest, ReadyNeedsOneWorkerOfEachRole) {
  EXPECT_FALSE(view_.Ready());
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  EXPECT_FALSE(view_.Ready());
  ASSERT_TRUE(view_.Register(Info("d0", "decode")).ok());
  EXPECT_TRUE(view_.Ready());
  v1::HeartbeatRequest beat = Beat("d0");
  beat.set_draining(true);
  ASSERT_TRUE(view_.Heartbeat(beat).ok());
  EXPECT_FALSE(view_.Ready());
  EXPECT_EQ(view_.Snapshot()[0].state, WorkerState::kDraining);
}

TEST_F(ClusterViewTest, MissingFieldsAreRefusedByName) {
  const std::pair<const char*, void (*)(v1::WorkerInfo*)> cases[] = {
      {"worker.name", [](v1::WorkerInfo* i) { i->clear_name(); }},
      {"worker.name", [](v1::WorkerInfo* i) { i->set_name("has space"); }},
      {"worker.name", [](v1::WorkerInfo* i) { i->set_name(std::string(129, 'x')); }},
      {"worker.incarnation", [](v1::WorkerInfo* i) { i->clear_incarnation(); }},
      {"role is mandatory", [](v1::WorkerInfo* i) { i->clear_role(); }},
      {"worker.role", [](v1::WorkerInfo* i) { i->set_role("backend"); }},
      {"worker.address", [](v1::WorkerInfo* i) { i->clear_address(); }},
      {"worker.model_name", [](v1::WorkerInfo* i) { i->clear_model_name(); }},
      {"worker.fingerprint", [](v1::WorkerInfo* i) { i->mutable_fingerprint()->clear_weights(); }},
      {"worker.layout", [](v1::WorkerInfo* i) { i->mutable_layout()->set_block_size(0); }},
      {"worker.max_context", [](v1::WorkerInfo* i) { i->set_max_context(0); }},
      {"worker.endpoints", [](v1::WorkerInfo* i) { i->add_endpoints()->set_address(std::string(65537, 'x')); }},
  };
  for (const auto& [what, spoil] : cases) {
    v1::WorkerInfo info = Info("p0", "prefill");
    spoil(&info);
    const absl::Status status = view_.Register(info);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  EXPECT_THAT(view_.Snapshot(), IsEmpty());
}

TEST_F(ClusterViewTest, EveryFieldThatDiffersIsNamedWithBothValues) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  v1::WorkerInfo other = Info("d0", "decode");
  other.mutable_fingerprint()->set_weights("w2");
  other.mutable_fingerprint()->set_config("c2");
  other.mutable_fingerprint()->set_numerics_class("f32");
  other.mutable_layout()->set_dtype("f32");
  other.mutable_layout()->set_block_size(32);
  other.mutable_layout()->set_num_layers(9);
  other.mutable_layout()->set_num_kv_heads(8);
  other.mutable_layout()->set_head_dim(128);
  other.mutable_layout()->set_version(2);
  const absl::Status status = view_.Register(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("worker p0"), HasSubstr("fingerprint.weights (ours w, theirs w2)"),
            HasSubstr("fingerprint.config (ours c, theirs c2)"),
            HasSubstr("fingerprint.numerics_class (ours int, theirs f32)"),
            HasSubstr("layout.dtype (ours f16, theirs f32)"), HasSubstr("layout.block_size (ours 16, theirs 32)"),
            HasSubstr("layout.num_layers (ours 2, theirs 9)"), HasSubstr("layout.num_kv_heads (ours 3, theirs 8)"),
            HasSubstr("layout.head_dim (ours 64, theirs 128)"), HasSubstr("layout.version (ours 1, theirs 2)"),
            Not(HasSubstr("tokenizer"))));
  EXPECT_EQ(view_.Snapshot().size(), 1u);
  v1::ClusterStatus shown;
  view_.FillStatus(&shown);
  ASSERT_EQ(shown.refused_size(), 1);
  EXPECT_THAT(shown.refused(0), HasSubstr("layout.block_size (ours 16, theirs 32)"));
}

TEST_F(ClusterViewTest, TheRoutersOwnTokenizerAndModelNameCountToo) {
  v1::WorkerInfo info = Info("p0", "prefill");
  info.mutable_fingerprint()->set_tokenizer("t2");
  info.set_model_name("m2");
  const absl::Status status = view_.Register(info);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("the router"), HasSubstr("tokenizer (ours t, theirs t2)"),
                                                   HasSubstr("model_name (ours m, theirs m2)")));
}

TEST_F(ClusterViewTest, RefusalsAreBounded) {
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(view_.Register(Info("x" + std::to_string(i), "none")).ok());
  v1::ClusterStatus shown;
  view_.FillStatus(&shown);
  EXPECT_EQ(shown.refused_size(), 2);
}

TEST_F(ClusterViewTest, ReferenceIsForgottenWithTheLastLiveWorker) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  v1::WorkerInfo other = Info("d0", "decode");
  other.mutable_fingerprint()->set_weights("w2");
  EXPECT_FALSE(view_.Register(other).ok());
  clock_.Advance(absl::Seconds(3));
  view_.ExpireSilent();
  EXPECT_THAT(gone_, ElementsAre("p0/i1"));
  EXPECT_TRUE(view_.Register(other).ok());
  // The old model's worker comes back and is now the stranger.
  EXPECT_EQ(view_.Heartbeat(Beat("p0")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(view_.Register(Info("p0", "prefill")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClusterViewTest, TheOnlyWorkerMayComeBackWithAnotherModel) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  v1::WorkerInfo restarted = Info("p0", "prefill", "i2");
  restarted.mutable_fingerprint()->set_weights("w2");
  EXPECT_TRUE(view_.Register(restarted).ok());
  EXPECT_THAT(gone_, ElementsAre("p0/i1"));
}

TEST_F(ClusterViewTest, ANewIncarnationFencesTheOldOne) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill", "i1")).ok());
  view_.AddInFlight({"p0", "i1"}, {.tokens = 7});
  ASSERT_TRUE(view_.Register(Info("p0", "prefill", "i2")).ok());
  EXPECT_THAT(gone_, ElementsAre("p0/i1"));
  EXPECT_EQ(view_.Snapshot()[0].in_flight, 0u);
  EXPECT_EQ(view_.Heartbeat(Beat("p0", "i1")).code(), absl::StatusCode::kNotFound);
  const absl::Status again = view_.Register(Info("p0", "prefill", "i1"));
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("replaced by a newer one"));
  // Late accounting of the old one does not touch the new one.
  view_.RemoveInFlight({"p0", "i1"}, {.tokens = 7});
  view_.AddInFlight({"p0", "i2"}, {.tokens = 5});
  EXPECT_EQ(view_.Snapshot()[0].pending_tokens, 5u);
  EXPECT_TRUE(view_.Heartbeat(Beat("p0", "i2")).ok());
}

TEST_F(ClusterViewTest, SilenceLosesAWorkerOnceAndRegisteringBringsItBack) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  clock_.Advance(absl::Milliseconds(2999));
  view_.ExpireSilent();
  EXPECT_THAT(gone_, IsEmpty());
  ASSERT_TRUE(view_.Heartbeat(Beat("p0")).ok());
  clock_.Advance(absl::Milliseconds(3000));
  view_.ExpireSilent();
  view_.ExpireSilent();
  EXPECT_THAT(gone_, ElementsAre("p0/i1"));
  EXPECT_EQ(view_.Snapshot()[0].state, WorkerState::kLost);
  EXPECT_EQ(view_.MaxContext(), std::nullopt);
  EXPECT_EQ(view_.Heartbeat(Beat("p0")).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  EXPECT_EQ(view_.Snapshot()[0].state, WorkerState::kReady);
  clock_.Advance(absl::Seconds(3));
  view_.ExpireSilent();
  clock_.Advance(absl::Minutes(10));
  view_.ExpireSilent();
  EXPECT_THAT(view_.Snapshot(), IsEmpty()) << "lost workers are forgotten in the end";
}

TEST_F(ClusterViewTest, ARouterThatStoodStillDoesNotTakeItForItsWorkersSilence) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  clock_.Advance(absl::Seconds(10));
  view_.ForgiveSilence(absl::Seconds(10));
  view_.ExpireSilent();
  EXPECT_THAT(gone_, IsEmpty());
  view_.ForgiveSilence(absl::Seconds(10));  // never more than there was
  clock_.Advance(absl::Milliseconds(3000));
  view_.ExpireSilent();
  EXPECT_THAT(gone_, ElementsAre("p0/i1"));
}

TEST_F(ClusterViewTest, DeregisterTakesOutWithoutFailingItsRequests) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  EXPECT_EQ(view_.Deregister({"p0", "other"}).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(view_.Deregister({"p0", "i1"}).ok());
  EXPECT_THAT(gone_, IsEmpty());
  EXPECT_THAT(view_.Snapshot(), IsEmpty());
}

TEST_F(ClusterViewTest, WorkersAreBounded) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(view_.Register(Info("p" + std::to_string(i), "prefill")).ok());
  EXPECT_EQ(view_.Register(Info("p3", "prefill")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(view_.Register(Info("p2", "prefill")).ok()) << "known ones may register again";
}

TEST_F(ClusterViewTest, LoadAndSuspicionReachTheSnapshot) {
  ASSERT_TRUE(view_.Register(Info("d0", "decode")).ok());
  EXPECT_EQ(view_.Snapshot()[0].free_blocks, 100u) << "before the first report the pool counts as empty";
  view_.ReportUnreachable({"d0", "i1"});
  EXPECT_TRUE(view_.Snapshot()[0].suspect);
  v1::HeartbeatRequest beat = Beat("d0");
  beat.mutable_load()->set_running(4);
  beat.mutable_load()->set_waiting_tokens(77);
  beat.mutable_load()->mutable_ledger()->set_free(10);
  beat.mutable_load()->mutable_ledger()->set_cached(5);
  ASSERT_TRUE(view_.Heartbeat(beat).ok());
  const WorkerSnapshot s = view_.Snapshot()[0];
  EXPECT_FALSE(s.suspect);
  EXPECT_EQ(s.sequences, 4u);
  EXPECT_EQ(s.pending_tokens, 77u);
  EXPECT_EQ(s.free_blocks, 15u);
  clock_.Advance(absl::Milliseconds(42));
  v1::ClusterStatus shown;
  view_.FillStatus(&shown);
  EXPECT_EQ(shown.workers(0).heartbeat_age_ms(), 42u);
  EXPECT_EQ(shown.workers(0).state(), "ready");
  EXPECT_EQ(shown.fingerprint().weights(), "w");
}

TEST_F(ClusterViewTest, WhatIsSentCountsUntilItEndsOrTheReportHasIt) {
  ASSERT_TRUE(view_.Register(Info("d0", "decode")).ok());
  const InFlightWork work{.tokens = 50, .sequences = 2, .blocks = 30};
  view_.AddInFlight({"d0", "i1"}, work);
  WorkerSnapshot s = view_.Snapshot()[0];
  EXPECT_EQ(s.pending_tokens, 50u);
  EXPECT_EQ(s.sequences, 2u);
  EXPECT_EQ(s.free_blocks, 70u);
  EXPECT_EQ(s.promised_blocks, 30u);
  v1::HeartbeatRequest beat = Beat("d0");  // the worker has computed most of it, and holds 10 blocks by now
  beat.mutable_load()->set_pending_tokens(8);
  beat.mutable_load()->mutable_ledger()->set_free(90);
  ASSERT_TRUE(view_.Heartbeat(beat).ok());
  s = view_.Snapshot()[0];
  EXPECT_EQ(s.pending_tokens, 8u);
  EXPECT_EQ(s.free_blocks, 90u);
  EXPECT_EQ(s.promised_blocks, 30u) << "a promise holds although the worker has not seen it";
  view_.RemoveInFlight({"d0", "i1"}, work);
  s = view_.Snapshot()[0];
  EXPECT_EQ(s.pending_tokens, 0u);
  EXPECT_EQ(s.free_blocks, 100u);
  EXPECT_EQ(s.promised_blocks, 0u);
  EXPECT_EQ(s.in_flight, 0u);
}

TEST_F(ClusterViewTest, AnUnreachableWorkerIsLeftAloneForAWhileNotForGood) {
  ASSERT_TRUE(view_.Register(Info("d0", "decode")).ok());
  view_.ReportUnreachable({"d0", "i1"});
  view_.ExpireSilent();
  EXPECT_TRUE(view_.Snapshot()[0].suspect);
  clock_.Advance(absl::Seconds(1));
  view_.ExpireSilent();
  EXPECT_FALSE(view_.Snapshot()[0].suspect);
  view_.ReportUnreachable({"d0", "i1"});
  view_.ReportUnreachable({"d0", "i1"});  // calls that failed together count once
  clock_.Advance(absl::Milliseconds(1500));
  view_.ExpireSilent();
  EXPECT_TRUE(view_.Snapshot()[0].suspect) << "longer the second time";
  ASSERT_TRUE(view_.Heartbeat(Beat("d0")).ok());
  EXPECT_FALSE(view_.Snapshot()[0].suspect);
  view_.ReportUnreachable({"d0", "i1"});
  clock_.Advance(absl::Seconds(1));
  view_.ExpireSilent();
  EXPECT_FALSE(view_.Snapshot()[0].suspect) << "a heartbeat starts it over";
}

TEST_F(ClusterViewTest, AWorkersPrefixesFollowItsReportsAndGoWithIt) {
  ASSERT_TRUE(view_.Register(Info("p0", "prefill")).ok());
  v1::HeartbeatRequest beat = Beat("p0");
  beat.mutable_prefixes()->set_version(7);
  for (const uint64_t name : {11, 12}) beat.mutable_prefixes()->add_added(name);
  uint64_t version = 0;
  ASSERT_TRUE(view_.Heartbeat(beat, &version).ok());
  EXPECT_EQ(version, 7u);
  const auto names = [&] {
    size_t size = 0;
    view_.Read([&](std::span<const WorkerSnapshot>, const PrefixDirectory& prefixes) { size = prefixes.size(); });
    return size;
  };
  EXPECT_EQ(names(), 2u);
  beat.mutable_prefixes()->set_base_version(9);  // something was missed
  ASSERT_TRUE(view_.Heartbeat(beat, &version).ok());
  EXPECT_EQ(version, 0u);
  ASSERT_TRUE(view_.Register(Info("p0", "prefill", "i2")).ok());
  EXPECT_EQ(names(), 0u);
}

// For thread sanitizer: what gRPC's threads, the ticker and placements do at the same time.
TEST(ClusterViewThreadsTest, OneViewServesManyThreads) {
  SimulatedClock clock;
  std::atomic<int> gone{0};
  ClusterView view({.worker_timeout = absl::Milliseconds(50), .max_workers = 8}, &clock,
                   [&](const WorkerId&, const std::string&) { ++gone; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "w" + std::to_string(t);
      const std::string role = t % 2 == 0 ? "prefill" : "decode";
      for (int i = 0; i < 300; ++i) {
        const std::string incarnation = std::to_string(i / 10);
        EXPECT_TRUE(view.Register(Info(name, role, incarnation)).ok());
        view.AddInFlight({name, incarnation}, {.tokens = 5});
        (void)view.Heartbeat(Beat(name, incarnation));
        EXPECT_LE(view.Snapshot().size(), 4u);
        view.ReportUnreachable({name, incarnation});
        view.RemoveInFlight({name, incarnation}, {.tokens = 5});
        clock.Advance(absl::Milliseconds(1));
        view.ExpireSilent();
        v1::ClusterStatus status;
        view.FillStatus(&status);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(gone, 4 * 29) << "each new incarnation fences the one before";
  for (const WorkerSnapshot& worker : view.Snapshot()) EXPECT_EQ(worker.in_flight, 0u);
}

}  // namespace
}  // namespace baton::router
