// Admission and policy together, over a view of one prefill and one decode worker and a clock that only the test moves.
#include "router/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPrompt = 100, kOutput = 16;

class PlacementTest : public ::testing::Test {
 protected:
  PlacementTest() : view_({}, &clock_, [](const WorkerId&, const std::string&) {}), placement_(&view_, &clock_, Options(), 1) {
    for (const char* role : {"prefill", "decode"}) {
      v1::WorkerInfo info;
      info.set_name(role);
      info.set_incarnation("i");
      info.set_role(role);
      info.set_address("127.0.0.1:1");
      info.set_model_name("m");
      info.set_max_context(1000);
      info.set_total_blocks(1000);
      info.set_max_sequences(1);
      info.mutable_fingerprint()->set_weights("w");
      info.mutable_fingerprint()->set_config("c");
      info.mutable_fingerprint()->set_tokenizer("t");
      info.mutable_fingerprint()->set_numerics_class("n");
      info.mutable_layout()->set_dtype("f16");
      info.mutable_layout()->set_block_size(16);
      info.mutable_layout()->set_num_layers(1);
      info.mutable_layout()->set_num_kv_heads(1);
      info.mutable_layout()->set_head_dim(1);
      EXPECT_TRUE(view_.Register(info).ok());
    }
  }
  static PlacementOptions Options() {
    PlacementOptions options;
    for (Promise& promise : options.admission.promises) promise.ttft = absl::Seconds(1);
    return options;
  }
  // Both workers' steps cost `us` a row, and `steps` were made so far.
  void Beat(double us, uint64_t steps) {
    for (const char* role : {"prefill", "decode"}) {
      v1::HeartbeatRequest beat;
      beat.set_name(role);
      beat.set_incarnation("i");
      beat.mutable_load()->mutable_cost()->set_per_row_us(us);
      beat.mutable_load()->mutable_cost()->set_samples(steps);
      EXPECT_TRUE(view_.Heartbeat(beat).ok());
    }
    placement_.Tick();
  }
  uint64_t Ask(absl::Duration time = absl::InfiniteDuration()) {
    PlaceRequest request;
    request.need.prompt_tokens = kPrompt;
    request.need.output_tokens = kOutput;
    request.need.total_tokens = kPrompt + kOutput;
    request.arrival = clock_.Now();
    request.deadline = clock_.Now() + time;
    const uint64_t id = placement_.NewId();
    request.request_id = absl::StrCat(id);
    placement_.Ask(id, std::move(request), [this, id](absl::StatusOr<PlacedHolds> placed) {
      ended_[id] = placed.status();
      if (placed.ok()) holds_[id] = *std::move(placed);
    });
    return id;
  }
  bool Placed(uint64_t id) const { return holds_.count(id) > 0; }
  absl::Status Ended(uint64_t id) const {
    const auto it = ended_.find(id);
    return it == ended_.end() ? absl::OkStatus() : it->second;
  }

  SimulatedClock clock_;
  ClusterView view_;
  std::map<uint64_t, absl::Status> ended_;
  std::map<uint64_t, PlacedHolds> holds_;
  Placement placement_;
};

TEST_F(PlacementTest, WhatWouldComeTooLateIsRefusedBeforeWorkIsSpentOnIt) {
  Beat(1000, 100);  // a prompt: 0.1 s
  const uint64_t first = Ask(), second = Ask();  // the decode worker's place, and the one beyond it
  ASSERT_TRUE(Placed(first) && Placed(second));
  const uint64_t late = Ask();
  EXPECT_FALSE(Placed(late));
  clock_.Advance(absl::Milliseconds(800));
  holds_.erase(first);
  holds_.erase(second);
  Beat(1000, 200);
  EXPECT_TRUE(Placed(late)) << "0.8 s and 0.1 s";

  const uint64_t third = Ask(), later = Ask();
  ASSERT_TRUE(Placed(third));
  EXPECT_FALSE(Placed(later));
  clock_.Advance(absl::Milliseconds(950));
  holds_.clear();
  placement_.Changed();
  EXPECT_FALSE(Placed(later));
  EXPECT_TRUE(absl::IsResourceExhausted(Ended(later)));
  EXPECT_EQ(ReasonOf(Ended(later)), "PREDICTED_TTFT");
  EXPECT_TRUE(RetryAfterOf(Ended(later)).has_value());
  EXPECT_THAT(std::string(Ended(later).message()), HasSubstr("waited 950 ms, would take about 100 ms more"));
}

// Only the class's promise was looked at: it was placed, decode room was reserved and the prompt computed, for a request that
// died meanwhile.
TEST_F(PlacementTest, WhatCannotKeepItsDeadlineIsRefusedBeforeWorkIsSpentOnIt) {
  Beat(1000, 100);
  ASSERT_TRUE(Placed(Ask()) && Placed(Ask()));
  const uint64_t late = Ask(absl::Milliseconds(500)), later = Ask(absl::Milliseconds(700));
  clock_.Advance(absl::Milliseconds(450));
  holds_.clear();
  placement_.Changed();
  EXPECT_FALSE(Placed(late));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ended(late))) << Ended(late);
  EXPECT_EQ(ReasonOf(Ended(late)), "PREDICTED_TTFT");
  EXPECT_THAT(std::string(Ended(late).message()), HasSubstr("waited 450 ms, would take about 100 ms more"));
  EXPECT_TRUE(Placed(later)) << Ended(later);
}

// It kept its place in the queue, and those behind it were forecast to wait for it, until its promise was over.
TEST_F(PlacementTest, WhoseTimeIsShorterThanItsPrefillIsRefusedWhileThereIsNoRoom) {
  Beat(1000, 100);
  ASSERT_TRUE(Placed(Ask()) && Placed(Ask()));
  const uint64_t late = Ask();
  clock_.Advance(absl::Milliseconds(899));
  placement_.Tick();
  EXPECT_TRUE(Ended(late).ok());
  EXPECT_EQ(placement_.queue().tokens, kPrompt);
  clock_.Advance(absl::Milliseconds(2));
  placement_.Tick();
  EXPECT_EQ(ReasonOf(Ended(late)), "PREDICTED_TTFT");
  EXPECT_TRUE(absl::IsResourceExhausted(Ended(late)));
  EXPECT_THAT(std::string(Ended(late).message()), HasSubstr("waited 901 ms, would take about 100 ms more"));
  EXPECT_EQ(placement_.queue().tokens, 0u);
}

// A worker whose first steps ran in a bad moment would be asked for nothing more, and never measure itself again.
TEST_F(PlacementTest, NobodyIsRefusedForWhatStepsCostLongAgo) {
  Beat(20'000, 100);  // a prompt: 2 s
  const uint64_t refused = Ask();
  EXPECT_EQ(ReasonOf(Ended(refused)), "PREDICTED_TTFT");
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Seconds(1));
    Beat(20'000, 100);
  }
  EXPECT_TRUE(Placed(Ask()));
  Beat(20'000, 101);
  EXPECT_EQ(ReasonOf(Ended(Ask())), "PREDICTED_TTFT") << "it is as slow as that";
}

}  // namespace
}  // namespace baton::router
