#include "router/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace baton::router {
namespace {

using ::testing::HasSubstr;

WorkerSnapshot Worker(const std::string& name, Role role, uint32_t slot = 0) {
  WorkerSnapshot w;
  w.id = {name, "i"};
  w.slot = slot;
  w.role = role;
  w.max_context = 4096;
  w.block_size = 16;
  w.free_blocks = w.total_blocks = 100;
  w.cost = {.fixed_us = 1000, .per_row_us = 100, .per_position_us = 0, .samples = 100};
  return w;
}

PlacementNeed Need(uint64_t prompt = 32, uint64_t total = 64) {
  PlacementNeed need;
  need.prompt_tokens = prompt;
  need.total_tokens = total;
  need.output_tokens = 16;
  return need;
}

class PolicyTest : public ::testing::Test {
 protected:
  std::string Prefill(const PlacementNeed& need = Need(), uint64_t seed = 0) {
    const auto choice = PickPrefill(workers_, need, depth_, options_, seed);
    return choice.ok() ? workers_[choice->worker].id.name : std::string(choice.status().message());
  }
  std::string Decode(const PlacementNeed& need = Need(), uint64_t seed = 0) {
    const auto choice = PickDecode(workers_, need, transfer_, options_, seed);
    return choice.ok() ? workers_[choice->worker].id.name : std::string(choice.status().message());
  }
  void Add(const std::string& name, Role role) {
    workers_.push_back(Worker(name, role, static_cast<uint32_t>(workers_.size())));
  }
  std::vector<WorkerSnapshot> workers_;
  std::vector<uint16_t> depth_;
  std::function<double(const WorkerSnapshot&)> transfer_;
  PolicyOptions options_;
};

TEST_F(PolicyTest, PrefillGoesWhereTokenZeroComesFirst) {
  Add("a", Role::kPrefill);
  Add("b", Role::kPrefill);
  Add("d", Role::kDecode);
  workers_[0].pending_tokens = 500;
  workers_[1].pending_tokens = 100;
  EXPECT_EQ(Prefill(), "b");
  workers_[1].cost.per_row_us = 2000;  // fewer tokens ahead, but a slow machine
  EXPECT_EQ(Prefill(), "a");
}

TEST_F(PolicyTest, TheLeastTimeToTokenZeroIsThatOfAnIdleWorker) {
  Add("a", Role::kPrefill);
  Add("b", Role::kPrefill);
  Add("d", Role::kDecode);
  for (WorkerSnapshot& w : workers_) w.pending_tokens = 10'000;
  workers_[1].cost.per_row_us = 50;
  const PlacementNeed need = Need(400, 500);
  const auto least = [&](bool local) { return LeastTtftUs(workers_, need, depth_, true, local); };
  EXPECT_EQ(least(false), 1000 + 400 * 50);
  depth_ = {20, 0, 0};  // blocks of 16
  EXPECT_EQ(least(false), 1000 + 80 * 100) << "most of it is in a's cache";
  workers_[2].prefill_cost = {.fixed_us = 100, .per_row_us = 10, .per_position_us = 0, .samples = 100};
  EXPECT_EQ(least(false), 1000 + 80 * 100);
  EXPECT_EQ(least(true), 100 + 400 * 10);
  workers_[2].cost_aged = true;
  EXPECT_EQ(least(true), 0) << "of d it is not known";
  workers_[1].cost.samples = 0;
  EXPECT_EQ(least(false), 0);
  workers_[1].state = WorkerState::kDraining;
  EXPECT_EQ(least(false), 1000 + 80 * 100);
}

TEST_F(PolicyTest, ACachedPrefixAttractsUntilTheQueueCostsMore) {
  Add("a", Role::kPrefill);
  Add("b", Role::kPrefill);
  depth_ = {60, 0};
  const PlacementNeed need = Need(1000, 1100);
  EXPECT_EQ(Prefill(need), "a");
  workers_[0].pending_tokens = 700;  // 40 uncached and 700 ahead against 1000
  EXPECT_EQ(Prefill(need), "a");
  workers_[0].pending_tokens = 2000;
  EXPECT_EQ(Prefill(need), "b");
}

TEST_F(PolicyTest, OneTokenIsAlwaysComputed) {
  Add("a", Role::kPrefill);
  depth_ = {100};
  const auto choice = PickPrefill(workers_, Need(32), depth_, options_, 0);
  EXPECT_EQ(choice->chosen().cached_tokens, 31u);
}

TEST_F(PolicyTest, NoiseInTheMeasuresDoesNotSendAllToOne) {
  for (const char* name : {"a", "b", "c"}) Add(name, Role::kPrefill);
  workers_[1].cost.per_row_us = 99;
  std::map<std::string, int> count;
  for (uint64_t i = 0; i < 30; ++i) ++count[Prefill(Need(), i)];
  EXPECT_EQ(count["a"], 10);
  EXPECT_EQ(count["b"], 10);
  EXPECT_EQ(count["c"], 10);
}

TEST_F(PolicyTest, DecodeWantsRoomForPromptAndExpectedOutput) {
  Add("a", Role::kDecode);
  Add("b", Role::kDecode);
  workers_[0].in_flight = workers_[1].in_flight = 1;
  workers_[0].free_blocks = 3;  // 32 tokens of prompt, 16 of output and the next one: 4 blocks
  workers_[1].sequences = 5;
  EXPECT_EQ(Decode(), "b");
  workers_[0].free_blocks = 4;
  EXPECT_EQ(Decode(), "a");
  workers_[0].promised_blocks = 97;  // to requests that have not come yet
  EXPECT_EQ(Decode(), "b");
  workers_[1].free_blocks = 0;
  EXPECT_EQ(PickDecode(workers_, Need(), nullptr, options_, 0).status().code(), absl::StatusCode::kResourceExhausted);
  options_.check_room = false;
  EXPECT_EQ(Decode(), "a");
}

// Beyond the places of a step (and a few for those on their way) a request would wait at the worker, where admission neither
// orders nor refuses it: ten times the load made nearly every answer late.
TEST_F(PolicyTest, DecodeWantsAPlaceInAStepToo) {
  Add("a", Role::kDecode);
  WorkerSnapshot& w = workers_[0];
  w.in_flight = 1;
  w.max_sequences = 16;
  w.sequences = 17;
  EXPECT_EQ(Decode(), "a");
  w.sequences = 18;
  const auto full = PickDecode(workers_, Need(), nullptr, options_, 0);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.status().message(), testing::HasSubstr("place"));
  w.sequences = 0;
  w.promised_sequences = 18;  // whose prompts are still computed elsewhere
  EXPECT_EQ(PickDecode(workers_, Need(), nullptr, options_, 0).status().code(), absl::StatusCode::kResourceExhausted);
  w.in_flight = 0;
  EXPECT_EQ(Decode(), "a") << "an idle one takes more choices than a step has places";
  w.in_flight = 1;
  w.max_sequences = 0;
  EXPECT_EQ(Decode(), "a") << "it did not say how many";
}

TEST_F(PolicyTest, AnIdleDecodeWorkerIsTriedWithWhateverItCanHold) {
  Add("a", Role::kDecode);
  PlacementNeed need = Need(1590, 1600);
  need.output_tokens = 128;
  EXPECT_EQ(Decode(need), "a");
}

TEST_F(PolicyTest, ChoicesShareThePromptsBlocks) {
  PlacementNeed need = Need(160);
  EXPECT_EQ(need.Blocks(16), 12u);
  need.choices = 4;
  EXPECT_EQ(need.Blocks(16), 18u);
}

TEST_F(PolicyTest, DecodeWeighsStepsAgainstTheWay) {
  Add("near", Role::kDecode);
  Add("far", Role::kDecode);
  transfer_ = [](const WorkerSnapshot& w) { return w.id.name == "far" ? 50000.0 : 1000.0; };
  EXPECT_EQ(Decode(), "near");
  workers_[0].sequences = 60;  // 16 steps at 7 ms
  EXPECT_EQ(Decode(), "far");
}

TEST_F(PolicyTest, AWayThatHasJustFailedIsTheLastResort) {
  Add("a", Role::kDecode);
  Add("b", Role::kDecode);
  workers_[1].sequences = 60;
  transfer_ = [](const WorkerSnapshot& w) { return w.id.name == "a" ? -1.0 : 0.0; };
  EXPECT_EQ(Decode(), "b");
  workers_[1].state = WorkerState::kLost;
  EXPECT_EQ(Decode(), "a");
}

TEST_F(PolicyTest, MoreSequencesThanAStepTakesShareTheSteps) {
  WorkerSnapshot w = Worker("a", Role::kDecode);
  w.max_sequences = 8;
  w.sequences = 15;
  const double shared = StepUs(w, 1, 10);
  w.max_sequences = 0;
  EXPECT_DOUBLE_EQ(shared, 2 * StepUs(w, 1, 10));
}

TEST_F(PolicyTest, TiesGoRoundRobin) {
  for (const char* name : {"a", "b", "c"}) Add(name, Role::kDecode);
  std::map<std::string, int> count;
  for (uint64_t i = 0; i < 30; ++i) ++count[Decode(Need(), i)];
  EXPECT_EQ(count["a"], 10);
  EXPECT_EQ(count["b"], 10);
  EXPECT_EQ(count["c"], 10);
}

TEST_F(PolicyTest, DrainingLostAndSuspectAreNeverChosen) {
  for (const char* name : {"a", "b", "c"}) Add(name, Role::kPrefill);
  workers_[0].state = WorkerState::kDraining;
  workers_[1].state = WorkerState::kLost;
  EXPECT_EQ(Prefill(), "c");
  workers_[2].suspect = true;
  const auto picked = PickPrefill(workers_, Need(), {}, options_, 0);
  EXPECT_EQ(picked.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Prefill(), ::testing::AllOf(HasSubstr("no prefill worker is ready (1 draining, 1 lost, 1 not answering)"),
                                          HasSubstr("start one")));
  EXPECT_THAT(Decode(), HasSubstr("no decode worker is ready (0 draining, 0 lost)"));
}

TEST_F(PolicyTest, AvoidedWorkersAreTheLastResort) {
  Add("a", Role::kDecode);
  Add("b", Role::kDecode);
  workers_[1].sequences = 50;
  PlacementNeed need = Need();
  need.avoid.insert(workers_[0].id);
  EXPECT_EQ(Decode(need), "b");
  workers_[1].state = WorkerState::kLost;
  EXPECT_EQ(Decode(need), "a");
  need.only_others = true;
  EXPECT_EQ(PickDecode(workers_, need, nullptr, options_, 0).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PolicyTest, ARequestTooLongForEveryWorkerIsToldSo) {
  Add("a", Role::kDecode);
  const auto picked = PickDecode(workers_, Need(500, 4097), nullptr, options_, 0);
  EXPECT_EQ(picked.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(picked.status().message()), HasSubstr("4097"));
  EXPECT_EQ(Decode(Need(500, 4096)), "a");
}

TEST_F(PolicyTest, AFullPrefillPoolSaysSo) {
  Add("a", Role::kPrefill);
  options_.max_backlog_tokens = 100;
  workers_[0].pending_tokens = 99;
  EXPECT_EQ(Prefill(Need(1000, 1100)), "a");
  workers_[0].pending_tokens = 100;
  EXPECT_EQ(PickPrefill(workers_, Need(), {}, options_, 0).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PolicyTest, ASampleComparesFewAndKeepsThePrefixHolder) {
  for (int i = 0; i < 100; ++i) Add("w" + std::to_string(i), Role::kPrefill);
  options_.sample = 2;
  std::map<std::string, int> count;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto choice = PickPrefill(workers_, Need(1000, 1100), depth_, options_, seed);
    EXPECT_EQ(choice->considered, 2u);
    ++count[workers_[choice->worker].id.name];
  }
  EXPECT_GT(count.size(), 95u);
  depth_.assign(100, 0);
  depth_[42] = 60;
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(Prefill(Need(1000, 1100), seed), "w42");
}

// A newcomer got no traffic at all, so it never came to tell its cost.
TEST_F(PolicyTest, AWorkerThatHasNotToldItsCostCountsAsTheOthersDo) {
  for (const char* name : {"a", "b"}) Add(name, Role::kPrefill);
  for (const char* name : {"c", "d"}) Add(name, Role::kDecode);
  workers_[1].cost = workers_[3].cost = {};
  workers_[0].in_flight = workers_[2].in_flight = 1;
  EXPECT_EQ(Prefill(), "b");
  EXPECT_EQ(Decode(), "d");
  workers_[1].pending_tokens = workers_[3].sequences = 500;
  EXPECT_EQ(Prefill(), "a");
  EXPECT_EQ(Decode(), "c");
}

TEST_F(PolicyTest, AWorkerWhoseFirstStepsWereSlowGetsItsTurn) {
  for (const char* name : {"a", "b"}) Add(name, Role::kPrefill);
  for (const char* name : {"c", "d"}) Add(name, Role::kDecode);
  workers_[1].cost = workers_[3].cost = {.fixed_us = 50'000, .per_row_us = 5'000, .samples = 2};
  workers_[0].in_flight = workers_[2].in_flight = 1;
  EXPECT_EQ(Prefill(), "b");
  EXPECT_EQ(Decode(), "d");
  workers_[1].cost.samples = workers_[3].cost.samples = 100;  // it is slow
  EXPECT_EQ(Prefill(), "a");
  EXPECT_EQ(Decode(), "c");
}

// Seen as a worker that got no request for a minute, because its first steps ran beside other processes.
TEST_F(PolicyTest, AWorkerThatWasSlowLongAgoGetsItsTurn) {
  for (const char* name : {"p0", "p1"}) Add(name, Role::kPrefill);
  for (const char* name : {"d0", "d1"}) Add(name, Role::kDecode);
  workers_[1].cost = workers_[3].cost = {.fixed_us = 50'000, .per_row_us = 5'000, .samples = 100};
  workers_[0].in_flight = workers_[2].in_flight = 1;
  EXPECT_EQ(Prefill(), "p0");
  EXPECT_EQ(Decode(), "d0");
  workers_[1].cost_aged = workers_[3].cost_aged = true;
  EXPECT_EQ(Prefill(), "p1");
  EXPECT_EQ(Decode(), "d1");
  for (WorkerSnapshot& w : workers_) w.cost_aged = true;  // nobody had anything to do: what was known is all there is
  EXPECT_EQ(Prefill(), "p0");
  EXPECT_EQ(Decode(), "d0");
}

TEST_F(PolicyTest, TheOtherRules) {
  for (const char* name : {"a", "b", "c"}) Add(name, Role::kPrefill);
  workers_[0].pending_tokens = 900;
  workers_[1].pending_tokens = 10;
  workers_[2].pending_tokens = 20;
  depth_ = {2, 0, 0};
  options_.rule = PlacementRule::kLeastLoaded;
  EXPECT_EQ(Prefill(), "b");
  options_.rule = PlacementRule::kRoundRobin;
  EXPECT_EQ(Prefill(Need(), 0) + Prefill(Need(), 1) + Prefill(Need(), 2), "abc");
  options_.rule = PlacementRule::kRandom;
  std::map<std::string, int> count;
  for (uint64_t i = 0; i < 3000; ++i) ++count[Prefill(Need(), i)];
  for (const auto& [name, n] : count) EXPECT_NEAR(n, 1000, 150) << name;
  for (const PlacementRule rule : {PlacementRule::kCost, PlacementRule::kRoundRobin, PlacementRule::kRandom,
                                   PlacementRule::kLeastLoaded}) {
    EXPECT_EQ(PlacementRuleFrom(Name(rule)), rule);
  }
}

TEST_F(PolicyTest, TheChoiceDependsOnNothingButItsArguments) {
  for (const char* name : {"a", "b", "c"}) Add(name, Role::kPrefill);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(Prefill(Need(), i), Prefill(Need(), i));
}

}  // namespace
}  // namespace baton::router
