#include "router/role_balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr double kUsPerToken = 500;

WorkerSnapshot Worker(const std::string& name, Role role) {
  WorkerSnapshot w;
  w.id = {name, "1"};
  w.role = role;
  w.address = absl::StrCat(name, ":1");
  w.changes_role = true;
  w.total_blocks = w.free_blocks = 1000;
  w.max_sequences = 32;
  w.prefill_cost = {.per_row_us = kUsPerToken, .samples = 100};
  return w;
}

struct Pools {
  std::vector<WorkerSnapshot> workers;
  explicit Pools(int prefill, int decode) {
    for (int i = 0; i < prefill; ++i) workers.push_back(Worker(absl::StrCat("prefill-", i), Role::kPrefill));
    for (int i = 0; i < decode; ++i) workers.push_back(Worker(absl::StrCat("decode-", i), Role::kDecode));
  }
  void Backlog(double seconds) {  // of each prefill worker
    for (WorkerSnapshot& w : workers) {
      if (w.role == Role::kPrefill) w.pending_tokens = static_cast<uint64_t>(seconds * 1e6 / kUsPerToken);
    }
  }
  void Fullness(double share) {
    for (WorkerSnapshot& w : workers) {
      if (w.role == Role::kDecode) w.free_blocks = static_cast<uint64_t>(std::lround(1000 * (1 - share)));
    }
  }
  int Count(Role role) const {
    return static_cast<int>(std::count_if(workers.begin(), workers.end(), [&](const auto& w) { return w.role == role; }));
  }
  void Change(const RoleChange& change) {
    for (WorkerSnapshot& w : workers) {
      if (w.id == change.worker) w = Worker(w.id.name, change.from == Role::kDecode ? Role::kPrefill : Role::kDecode);
    }
  }
};

class RoleBalancerTest : public testing::Test {
 protected:
  // Ticks for `duration`; the first change that comes, and when it came in after_.
  std::optional<RoleChange> Run(const Pools& pools, absl::Duration duration, uint64_t queued = 0) {
    const absl::Time begin = now_;
    for (; now_ - begin < duration; now_ += kTick) {
      if (auto change = balancer_.Tick(pools.workers, queued, now_)) {
        after_ = now_ - begin;
        return change;
      }
    }
    return std::nullopt;
  }

  absl::Time now_ = absl::UnixEpoch();
  absl::Duration after_;
  RoleBalancer balancer_{RoleBalancerOptions{}};
};

TEST_F(RoleBalancerTest, AnOverloadedPrefillPoolGetsAnIdleDecodeWorkerOnceThatHasLasted) {
  Pools pools(1, 3);
  pools.Backlog(3);
  pools.Fullness(0.2);
  pools.workers[2].in_flight = 4;  // decode-1
  pools.workers[1].in_flight = 5;  // decode-0
  const auto change = Run(pools, absl::Minutes(1));
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->worker.name, "decode-2") << "the one with the fewest requests";
  EXPECT_EQ(change->from, Role::kDecode);
  EXPECT_EQ(change->address, "decode-2:1");
  EXPECT_NE(change->why.find("3.0 s"), std::string::npos) << change->why;
  EXPECT_GE(after_, RoleBalancerOptions().sustain);
  // One at a time, until it is back.
  EXPECT_FALSE(Run(pools, absl::Minutes(1)).has_value());
}

TEST_F(RoleBalancerTest, AFullDecodePoolGetsAPrefillWorker) {
  Pools pools(2, 1);
  pools.Backlog(0.05);
  pools.Fullness(0.97);
  const auto change = Run(pools, absl::Minutes(1));
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->from, Role::kPrefill);
}

TEST_F(RoleBalancerTest, FullBatchesCountAsFull) {
  Pools pools(2, 1);
  pools.Backlog(0.05);
  pools.workers[2].sequences = 32;
  EXPECT_TRUE(Run(pools, absl::Minutes(1)).has_value());
}

TEST_F(RoleBalancerTest, PromptsThatWaitInTheRouterCount) {
  Pools pools(1, 2);
  EXPECT_FALSE(Run(pools, absl::Minutes(1), 1000).has_value());  // half a second of work
  EXPECT_TRUE(Run(pools, absl::Minutes(1), 4000).has_value());
}

TEST_F(RoleBalancerTest, ALastWorkerStays) {
  Pools pools(1, 1);
  pools.Backlog(100);
  EXPECT_FALSE(Run(pools, absl::Minutes(5)).has_value());
  pools.Backlog(0);
  pools.Fullness(1);
  EXPECT_FALSE(Run(pools, absl::Minutes(5)).has_value());
}

TEST_F(RoleBalancerTest, APoolThatWouldBeFullWithoutTheWorkerKeepsIt) {
  Pools pools(1, 2);
  pools.Backlog(10);
  pools.Fullness(0.5);  // one alone would be full
  EXPECT_FALSE(Run(pools, absl::Minutes(5)).has_value());
}

TEST_F(RoleBalancerTest, WhereBothPoolsSufferNothingChanges) {
  Pools pools(4, 4);
  pools.Backlog(10);
  pools.Fullness(0.95);
  EXPECT_FALSE(Run(pools, absl::Minutes(5)).has_value());
}

TEST_F(RoleBalancerTest, AShortPeakChangesNothing) {
  Pools pools(1, 3);
  for (int i = 0; i < 50; ++i) {
    pools.Backlog(5);
    ASSERT_FALSE(Run(pools, absl::Seconds(9)).has_value());
    pools.Backlog(0);
    ASSERT_FALSE(Run(pools, absl::Seconds(1)).has_value());
  }
}

// Planners elsewhere took the first, slow steps of a fresh worker for its speed.
TEST_F(RoleBalancerTest, WorkersThatHaveNotMeasuredThemselvesAreNoEvidence) {
  Pools pools(1, 3);
  pools.Backlog(50);
  pools.workers[0].prefill_cost = {};
  EXPECT_FALSE(Run(pools, absl::Minutes(5)).has_value());
}

TEST_F(RoleBalancerTest, OnlyReadyWorkersThatCanChangeAreAsked) {
  Pools pools(1, 3);
  pools.Backlog(5);
  pools.workers[1].changes_role = false;
  pools.workers[2].state = WorkerState::kDraining;
  pools.workers[3].suspect = true;
  EXPECT_FALSE(Run(pools, absl::Minutes(1)).has_value());
  pools.workers[3].suspect = false;
  const auto change = Run(pools, absl::Minutes(1));
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->worker.name, "decode-2");
}

TEST_F(RoleBalancerTest, AWorkerThatNeverComesBackBlocksTheOthersForAWhileOnly) {
  Pools pools(1, 3);
  pools.Backlog(5);
  ASSERT_TRUE(Run(pools, absl::Minutes(1)).has_value());
  EXPECT_FALSE(Run(pools, absl::Minutes(2) - absl::Seconds(1)).has_value());
  EXPECT_TRUE(Run(pools, absl::Minutes(1)).has_value());
}

TEST_F(RoleBalancerTest, AfterARefusalItIsAskedAgainLater) {
  Pools pools(1, 3);
  pools.Backlog(5);
  ASSERT_TRUE(Run(pools, absl::Minutes(1)).has_value());
  balancer_.Refused(now_);
  ASSERT_TRUE(Run(pools, absl::Minutes(1)).has_value());
  EXPECT_GE(after_, RoleBalancerOptions().sustain);
}

// Pools that really react: prompts and answers arrive at rates, the pools work them off, and changes take 2 s. The load
// turns from prompts to answers and back every ten minutes. Each turn may move workers once, and nothing is moved back
// until the load turns.
TEST_F(RoleBalancerTest, ALoadThatTurnsMovesWorkersOnceEachWay) {
  Pools pools(3, 3);
  double backlog_tokens = 0;
  std::vector<std::pair<absl::Duration, Role>> changes;
  std::optional<RoleChange> under_way;
  absl::Time back_at;
  const absl::Time begin = now_;
  for (; now_ - begin < absl::Minutes(40); now_ += kTick) {
    const bool prompts = static_cast<int64_t>((now_ - begin) / absl::Minutes(10)) % 2 == 0;
    const double dt = absl::ToDoubleSeconds(kTick);
    if (under_way.has_value() && now_ >= back_at) {
      pools.Change(*under_way);
      under_way.reset();
    }
    // 2,000 tokens/s a prefill worker.
    const int prefill = pools.Count(Role::kPrefill), decode = pools.Count(Role::kDecode);
    const int away_prefill = under_way.has_value() && under_way->from == Role::kPrefill;
    const int away_decode = under_way.has_value() && under_way->from == Role::kDecode;
    backlog_tokens = std::max(0.0, backlog_tokens + (prompts ? 7600.0 : 2000.0) * dt - (prefill - away_prefill) * 2000.0 * dt);
    const double answers = prompts ? 1.1 : 3.4;  // in workers' worth of blocks
    pools.Backlog(backlog_tokens * kUsPerToken / 1e6 / (prefill - away_prefill));
    pools.Fullness(std::min(1.0, answers / (decode - away_decode)));
    if (auto change = balancer_.Tick(pools.workers, 0, now_)) {
      ASSERT_FALSE(under_way.has_value()) << "two at once";
      changes.emplace_back(now_ - begin, change->from);
      under_way = change;
      back_at = now_ + absl::Seconds(2);
      for (WorkerSnapshot& w : pools.workers) {
        if (w.id == change->worker) w.state = WorkerState::kDraining;
      }
    }
  }
  std::string log;
  for (const auto& [when, from] : changes) absl::StrAppend(&log, absl::FormatDuration(when), " from ", Name(from), "; ");
  ASSERT_GE(changes.size(), 4u) << log;
  EXPECT_LE(changes.size(), 8u) << log;
  for (const auto& [when, from] : changes) {
    const bool prompts = static_cast<int64_t>(when / absl::Minutes(10)) % 2 == 0;
    EXPECT_EQ(from, prompts ? Role::kDecode : Role::kPrefill) << log;
    // Soon after the load has turned, not all the time.
    EXPECT_LT(when - absl::Minutes(10) * (static_cast<int64_t>(when / absl::Minutes(10))), absl::Minutes(2)) << log;
  }
}

}  // namespace
}  // namespace baton::router
