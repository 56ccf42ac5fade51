#include "router/serving_mode.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

class ServingModeTest : public ::testing::Test {
 protected:
  ServingModeTest() {
    for (const Role role : {Role::kPrefill, Role::kDecode}) {
      WorkerSnapshot w;
      w.id = {std::string(Name(role)), "i"};
      w.slot = static_cast<uint32_t>(workers_.size());
      w.role = role;
      w.max_context = 4096;
      w.block_size = 16;
      w.free_blocks = w.total_blocks = 1000;
      w.max_batch_tokens = 512;
      w.cost = {.fixed_us = 2000, .per_row_us = 300, .per_position_us = 0.1, .samples = 1000};
      w.prefill_cost = {.fixed_us = 2000, .per_row_us = 100, .per_position_us = 0.1, .samples = 1000};
      workers_.push_back(w);
    }
  }
  WorkerSnapshot& prefill() { return workers_[0]; }
  WorkerSnapshot& decode() { return workers_[1]; }

  bool Local(uint64_t prompt, double transfer_us = 3000) {
    PlacementNeed need;
    need.prompt_tokens = prompt;
    need.total_tokens = prompt + 64;
    need.output_tokens = 64;
    const auto p = PickPrefill(workers_, need, depth_, {}, 0);
    const auto d = PickDecode(workers_, need, nullptr, {}, 0);
    const auto l = PickLocal(workers_, need, depth_, {}, 0);
    EXPECT_TRUE(p.ok() && d.ok() && l.ok());
    remote_ = ForecastRemote(workers_, need, *p, &*d, transfer_us);
    local_ = ForecastLocal(workers_, need, *l);
    return PreferLocal(remote_, local_, left_);
  }

  std::vector<WorkerSnapshot> workers_;
  std::vector<uint16_t> depth_;
  LatencyLeft left_;
  ModeForecast remote_, local_;
};

TEST_F(ServingModeTest, NamesAreTheSettings) {
  for (const ServingMode mode : {ServingMode::kDisaggregated, ServingMode::kAggregated, ServingMode::kAuto}) {
    EXPECT_EQ(ServingModeFrom(Name(mode)), mode);
  }
}

TEST_F(ServingModeTest, AnIdleDecodeWorkerSavesTheHandOver) {
  EXPECT_TRUE(Local(512));
  EXPECT_DOUBLE_EQ(remote_.handover_us, 3000);
  EXPECT_DOUBLE_EQ(local_.others_us, 0);
}

TEST_F(ServingModeTest, WhoDecodesWeighsAgainstItAndAQueueForIt) {
  decode().sequences = 8;
  decode().mixed_batch_tokens = 128;
  EXPECT_FALSE(Local(512)) << "eight would be held up, and a prefill worker is free";
  prefill().in_flight = 12;
  prefill().pending_tokens = 12 * 512;
  EXPECT_TRUE(Local(512)) << "twelve are ahead of it there";
}

// By times, not by a length: the same short prompt goes either way, and so does the same long one.
TEST_F(ServingModeTest, AShortOrMostlyCachedPromptStays) {
  decode().sequences = 2;
  EXPECT_FALSE(Local(512));
  EXPECT_TRUE(Local(4));
  depth_ = {0, 31};  // 496 of its tokens are cached on the decode worker
  EXPECT_TRUE(Local(512));
  depth_ = {31, 0};
  EXPECT_FALSE(Local(512));
}

TEST_F(ServingModeTest, APromiseDecidesBeforeTheCost) {
  decode().sequences = 6;
  prefill().pending_tokens = 3000;
  prefill().in_flight = 1;
  EXPECT_FALSE(Local(1024));
  EXPECT_GT(remote_.ttft_us, local_.ttft_us);
  left_.ttft = absl::Microseconds((remote_.ttft_us + local_.ttft_us) / 2);
  EXPECT_TRUE(Local(1024)) << "only so token 0 comes in time";
  left_.itl = absl::Microseconds(local_.itl_us / 2);
  prefill().pending_tokens = prefill().in_flight = 0;
  EXPECT_FALSE(Local(1024)) << "those who decode would wait too long for a step";
}

// Mixed steps are made as long as the promise allows. A prefill worker that is in time leaves decode's room alone, even if token 0
// comes later; one whose queue is long does not.
TEST_F(ServingModeTest, RoomToSpareIsPreferredToAPromiseThatIsJustKept) {
  decode().sequences = 1;
  decode().mixed_batch_tokens = 128;
  prefill().pending_tokens = 1024;
  prefill().in_flight = 2;
  EXPECT_TRUE(Local(512)) << "without a promise it is the faster one";
  left_.itl = absl::Microseconds(local_.itl_us * 1.1);
  left_.ttft = absl::Microseconds(remote_.ttft_us * 2);
  EXPECT_FALSE(Local(512));
  left_.ttft = absl::Microseconds(remote_.ttft_us * 1.1);
  EXPECT_TRUE(Local(512)) << "both are just kept: by cost again";
  left_.itl = absl::Microseconds(local_.itl_us * 2);
  left_.ttft = absl::Microseconds(remote_.ttft_us * 2);
  EXPECT_FALSE(Local(512)) << "its steps are filled to the budget, of which the forecast is a mean";
  decode().mixed_batch_tokens = 1024;
  Local(512);
  left_.itl = absl::Microseconds(local_.itl_us * 2);
  EXPECT_TRUE(Local(512)) << "both have room";
}

TEST_F(ServingModeTest, WhereNeitherKeepsThePromiseTheSmallerBreachIsTaken) {
  decode().sequences = 4;
  decode().mixed_batch_tokens = 16;
  prefill().pending_tokens = 20000;
  prefill().in_flight = 30;
  EXPECT_TRUE(Local(512)) << "without a promise";
  left_.itl = absl::Microseconds(remote_.itl_us * 0.95);
  left_.ttft = absl::Microseconds(remote_.ttft_us);
  EXPECT_FALSE(Local(512)) << "mixed steps would break it by more";
  left_.itl = absl::Microseconds(local_.itl_us * 0.95);
  left_.ttft = absl::Microseconds(remote_.ttft_us / 4);
  EXPECT_TRUE(Local(512));
}

// As for a request that goes on elsewhere: its token 0 is long past.
TEST_F(ServingModeTest, APromiseThatIsBrokenAlreadyLeavesItToTheCost) {
  left_.ttft = -absl::Seconds(1);
  EXPECT_TRUE(Local(512)) << "an idle decode worker saves the hand-over";
  decode().sequences = 8;
  decode().mixed_batch_tokens = 128;
  EXPECT_FALSE(Local(512));
}

TEST_F(ServingModeTest, WhatIsNotMeasuredIsNotTried) {
  prefill().prefill_cost = prefill().cost = decode().prefill_cost = {};
  EXPECT_FALSE(Local(512));
}

// A worker that has computed a few tiny prompts thinks that long ones take an age: it is not believed at once.
TEST_F(ServingModeTest, AWorkerThatHardlyTriedIsTakenToBeLikeTheOthers) {
  decode().prefill_cost = {.fixed_us = 0, .per_row_us = 900, .per_position_us = 0, .samples = 3};
  EXPECT_DOUBLE_EQ(PrefillCostOf(workers_, decode()).per_row_us, 100);
  decode().prefill_cost.samples = 1000;
  EXPECT_DOUBLE_EQ(PrefillCostOf(workers_, decode()).per_row_us, 900);
}

TEST_F(ServingModeTest, ALocalQueueCounts) {
  decode().sequences = 1;
  decode().pending_tokens = 1;  // the newest token of the one that decodes
  Local(512);
  const double alone = local_.ttft_us;
  decode().pending_tokens = 2049;
  Local(512);
  EXPECT_GT(local_.ttft_us, alone + 2048 * 100);
  PolicyOptions options;
  options.max_backlog_tokens = 1024;
  PlacementNeed need;
  need.prompt_tokens = 16;
  EXPECT_TRUE(absl::IsResourceExhausted(PickLocal(workers_, need, depth_, options, 0).status()));
}

}  // namespace
}  // namespace baton::router
