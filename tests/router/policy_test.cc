#include "router/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace baton::router {
namespace {

using ::testing::HasSubstr;

WorkerSnapshot Worker(const std::string& name, Role role) {
  WorkerSnapshot w;
  w.id = {name, "i"};
  w.role = role;
  w.max_context = 1000;
  w.block_size = 16;
  w.free_blocks = w.total_blocks = 100;
  return w;
}

PlacementNeed Need(uint64_t prompt = 32, uint64_t total = 64) {
  PlacementNeed need;
  need.prompt_tokens = prompt;
  need.total_tokens = total;
  return need;
}

TEST(PolicyTest, PrefillGoesWhereFewestTokensWait) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kPrefill), Worker("b", Role::kPrefill),
                                         Worker("d", Role::kDecode)};
  workers[0].waiting_tokens = 10;
  workers[1].in_flight_tokens = 9;
  EXPECT_EQ(PickPrefill(workers, Need(), 0)->id.name, "b");
  workers[1].waiting_tokens = 2;
  EXPECT_EQ(PickPrefill(workers, Need(), 0)->id.name, "a");
}

TEST(PolicyTest, DecodeWantsRoomBeforeIdleness) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kDecode), Worker("b", Role::kDecode)};
  workers[0].free_blocks = 2;  // 33 positions want 3 blocks
  workers[1].running = 5;
  EXPECT_EQ(PickDecode(workers, Need(32), 0)->id.name, "b");
  workers[0].free_blocks = 3;
  EXPECT_EQ(PickDecode(workers, Need(32), 0)->id.name, "a");
  workers[0].in_flight = 6;  // what the router knows and the report does not yet
  EXPECT_EQ(PickDecode(workers, Need(32), 0)->id.name, "b");
}

TEST(PolicyTest, TiesGoRoundRobin) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kDecode), Worker("b", Role::kDecode),
                                         Worker("c", Role::kDecode)};
  std::map<std::string, int> count;
  for (uint64_t i = 0; i < 30; ++i) ++count[PickDecode(workers, Need(), i)->id.name];
  EXPECT_EQ(count["a"], 10);
  EXPECT_EQ(count["b"], 10);
  EXPECT_EQ(count["c"], 10);
}

TEST(PolicyTest, DrainingAndLostAreNeverChosen) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kPrefill), Worker("b", Role::kPrefill)};
  workers[0].state = WorkerState::kDraining;
  workers[1].state = WorkerState::kLost;
  const auto picked = PickPrefill(workers, Need(), 0);
  EXPECT_EQ(picked.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(picked.status().message()),
              ::testing::AllOf(HasSubstr("no prefill worker is ready (1 draining, 1 lost)"), HasSubstr("start one")));
  EXPECT_THAT(std::string(PickDecode(workers, Need(), 0).status().message()),
              HasSubstr("no decode worker is ready (0 draining, 0 lost)"));
}

TEST(PolicyTest, AvoidedAndSuspectWorkersAreTheLastResort) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kDecode), Worker("b", Role::kDecode),
                                         Worker("c", Role::kDecode)};
  workers[2].running = 50;
  PlacementNeed need = Need();
  need.avoid.insert(workers[0].id);
  workers[1].suspect = true;
  EXPECT_EQ(PickDecode(workers, need, 0)->id.name, "c");
  workers[2].state = WorkerState::kLost;
  EXPECT_EQ(PickDecode(workers, need, 0)->id.name, "b");
  workers[1].state = WorkerState::kLost;
  EXPECT_EQ(PickDecode(workers, need, 0)->id.name, "a");
  need.only_others = true;
  EXPECT_EQ(PickDecode(workers, need, 0).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PolicyTest, ARequestTooLongForEveryWorkerIsToldSo) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kDecode)};
  const auto picked = PickDecode(workers, Need(500, 1001), 0);
  EXPECT_EQ(picked.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(picked.status().message()), HasSubstr("1001"));
  EXPECT_TRUE(PickDecode(workers, Need(500, 1000), 0).ok());
}

TEST(PolicyTest, TheChoiceDependsOnNothingButItsArguments) {
  std::vector<WorkerSnapshot> workers = {Worker("a", Role::kPrefill), Worker("b", Role::kPrefill)};
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(PickPrefill(workers, Need(), i)->id, PickPrefill(workers, Need(), i)->id);
  }
}

}  // namespace
}  // namespace baton::router
