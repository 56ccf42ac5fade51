#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace baton::engine {
namespace {

ResidentView Decoding(uint64_t id, int num_tokens, int num_blocks, int64_t last_step = 0) {
  ResidentView view;
  view.id = id;
  view.num_tokens = num_tokens;
  view.num_computed = num_tokens - 1;
  view.num_blocks = num_blocks;
  view.releasable_blocks = num_blocks;
  view.last_step = last_step;
  return view;
}

ResidentView Prefilling(uint64_t id, int num_tokens, int num_computed, int num_blocks, int64_t last_step = 0) {
  ResidentView view = Decoding(id, num_tokens, num_blocks, last_step);
  view.num_computed = num_computed;
  return view;
}

WaitingView Waiting(uint64_t id, int num_tokens, int64_t num_blocks) {
  return {id, WaitingView::Kind::kSequence, num_tokens, num_blocks, absl::InfiniteFuture()};
}

WaitingView Room(uint64_t id, int64_t num_blocks) {
  return {id, WaitingView::Kind::kReservation, 0, num_blocks, absl::InfiniteFuture()};
}

Decision Decide(std::vector<ResidentView> resident, std::vector<WaitingView> waiting, int64_t available,
             SchedulerLimits limits = {64, 8, 4}, int64_t step = 100) {
  SchedulerState state;
  state.step = step;
  state.available_blocks = available;
  state.resident = resident;
  state.waiting = waiting;
  return Schedule(state, limits);
}

std::map<uint64_t, int> Rows(const Decision& decision) {
  std::map<uint64_t, int> rows;
  for (const auto& r : decision.rows) rows[r.id] = r.num_rows;
  return rows;
}

using Ids = std::vector<uint64_t>;
using RowMap = std::map<uint64_t, int>;

TEST(SchedulerTest, AStepThatDecodesTakesNoMorePromptThanTheMixedLimit) {
  const SchedulerLimits limits = {.max_batch_tokens = 64, .max_sequences = 8, .block_size = 4, .max_mixed_tokens = 10};
  const std::vector<ResidentView> both = {Decoding(1, 9, 3), Decoding(2, 9, 3), Prefilling(3, 100, 0, 25)};
  EXPECT_EQ(Rows(Decide(both, {}, 10, limits)), (std::map<uint64_t, int>{{1, 1}, {2, 1}, {3, 8}}));
  // A limit below what decodes leaves the prompt one row.
  SchedulerLimits tight = limits;
  tight.max_mixed_tokens = 2;
  EXPECT_EQ(Rows(Decide(both, {}, 10, tight)), (std::map<uint64_t, int>{{1, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(Rows(Decide({both[2]}, {}, 10, limits)), (std::map<uint64_t, int>{{3, 64}})) << "nobody waits for it";
  EXPECT_EQ(Rows(Decide({both[0]}, {Waiting(4, 40, 10)}, 30, limits)), (std::map<uint64_t, int>{{1, 1}, {4, 9}}));
}

TEST(SchedulerTest, DecodeRowsComeFirstThenChunksUpToTheBudget) {
  const Decision d = Decide({Prefilling(1, 100, 20, 25), Decoding(2, 9, 3), Decoding(3, 9, 3)}, {}, 50);
  EXPECT_EQ(d.rows[0].id, 2u);
  EXPECT_EQ(d.rows[1].id, 3u);
  EXPECT_EQ(Rows(d), (RowMap{{1, 62}, {2, 1}, {3, 1}}));
}

TEST(SchedulerTest, GrowsOnlyAtABlockBoundary) {
  const Decision d = Decide({Decoding(1, 8, 2), Decoding(2, 9, 2)}, {}, 5);
  ASSERT_EQ(d.rows.size(), 2u);
  EXPECT_FALSE(d.rows[0].grow);
  EXPECT_TRUE(d.rows[1].grow);
}

TEST(SchedulerTest, YoungestIsPreemptedWhenBlocksRunOut) {
  const Decision d = Decide({Decoding(1, 9, 2), Decoding(2, 9, 2), Decoding(3, 9, 3)}, {Waiting(4, 4, 1)}, 0);
  // 3 gives 3 blocks: enough for 1 and 2.
  EXPECT_EQ(d.preempted, Ids{3});
  EXPECT_EQ(Rows(d), (RowMap{{1, 1}, {2, 1}}));
  EXPECT_TRUE(d.admitted.empty()) << "admitted in a step that preempted";
}

TEST(SchedulerTest, WhatOthersReadIsNotPreempted) {
  ResidentView exported = Prefilling(3, 40, 8, 10);
  exported.pinned = true;
  const Decision d = Decide({Decoding(1, 9, 2), Decoding(2, 9, 3), exported}, {}, 0);
  EXPECT_EQ(d.preempted, Ids{2}) << "not the youngest, whose blocks a transfer reads";
  EXPECT_EQ(Rows(d).count(3), 1u) << "it goes on";
}

TEST(SchedulerTest, ReservationsNeedNoRoomForWhatTheCacheHolds) {
  SchedulerState state;
  state.available_blocks = 5;
  const std::vector<WaitingView> waiting = {Room(1, 10)};
  state.waiting = waiting;
  EXPECT_TRUE(Schedule(state, {64, 8, 4}).granted.empty());
  state.peek = [](uint64_t) { return PrefixHit{.blocks = 6, .cached_blocks = 1}; };
  EXPECT_EQ(Schedule(state, {64, 8, 4}).granted, Ids{1}) << "four of its own and one that it takes from the cache";
  state.available_blocks = 4;
  EXPECT_TRUE(Schedule(state, {64, 8, 4}).granted.empty());
}

TEST(SchedulerTest, YoungestWaitsWithItsBlocksRatherThanRecompute) {
  const Decision d = Decide({Decoding(1, 8, 2), Decoding(2, 9, 2)}, {}, 0);
  EXPECT_TRUE(d.preempted.empty());
  EXPECT_EQ(Rows(d), (RowMap{{1, 1}}));
}

TEST(SchedulerTest, HeadOfTheQueueIsNotOvertaken) {
  // Neither by a small sequence nor by a small reservation.
  EXPECT_TRUE(Decide({}, {Waiting(1, 40, 10), Waiting(2, 4, 1), Room(3, 1)}, 9).empty());
  EXPECT_TRUE(Decide({}, {Room(1, 10), Waiting(2, 4, 1)}, 9).empty());
  const Decision d = Decide({}, {Room(1, 4), Waiting(2, 4, 1), Room(3, 1)}, 9);
  EXPECT_EQ(d.granted, (Ids{1, 3}));
  EXPECT_EQ(d.admitted, Ids{2});
}

TEST(SchedulerTest, AdmissionLeavesRoomForResidentsToGrow) {
  EXPECT_TRUE(Decide({Decoding(1, 8, 2), Decoding(2, 8, 2)}, {Waiting(3, 8, 2)}, 3).admitted.empty());
  EXPECT_EQ(Decide({Decoding(1, 8, 2), Decoding(2, 8, 2)}, {Waiting(3, 8, 2)}, 4).admitted, Ids{3});
  EXPECT_TRUE(Decide({Decoding(1, 8, 2)}, {Room(3, 2)}, 2).granted.empty());
}

TEST(SchedulerTest, PrefixHitSavesBlocksAndRows) {
  SchedulerState state;
  state.available_blocks = 6;
  const std::vector<WaitingView> waiting = {Waiting(1, 40, 10)};
  state.waiting = waiting;
  state.peek = [](uint64_t) { return PrefixHit{6, 2}; };  // 4 of the hit blocks are in use by others anyway
  const Decision d = Schedule(state, {64, 8, 4});
  EXPECT_EQ(d.admitted, Ids{1});
  EXPECT_EQ(Rows(d), (RowMap{{1, 16}}));
  state.peek = [](uint64_t) { return PrefixHit{6, 3}; };
  EXPECT_TRUE(Schedule(state, {64, 8, 4}).admitted.empty());
}

TEST(SchedulerTest, ExpiredWorkEndsAndDoesNotRun) {
  ResidentView resident = Decoding(1, 8, 2);
  WaitingView waiting = Waiting(2, 4, 1);
  WaitingView room = Room(3, 1);
  resident.deadline = waiting.deadline = room.deadline = absl::UnixEpoch() + absl::Seconds(5);
  SchedulerState state;
  state.available_blocks = 10;
  const std::vector<ResidentView> residents = {resident};
  const std::vector<WaitingView> queue = {waiting, room};
  state.resident = residents;
  state.waiting = queue;
  state.now = absl::UnixEpoch() + absl::Seconds(5);
  const Decision late = Schedule(state, {64, 8, 4});
  EXPECT_EQ(late.expired, (Ids{1, 2, 3}));
  EXPECT_TRUE(late.rows.empty() && late.admitted.empty() && late.granted.empty());
  state.now -= absl::Nanoseconds(1);
  EXPECT_TRUE(Schedule(state, {64, 8, 4}).expired.empty());
}

TEST(SchedulerTest, TurnsAreTakenWhenTheBudgetIsTooSmall) {
  const std::vector<ResidentView> resident = {Decoding(1, 8, 2, 9), Decoding(2, 8, 2, 7), Decoding(3, 8, 2, 8)};
  EXPECT_EQ(Rows(Decide(resident, {}, 9, {2, 8, 4})), (RowMap{{2, 1}, {3, 1}}));
}

// Found by the hand-over test: with one row a step, a sequence without a block was chosen again and again, since it
// never ran, and everything stood still.
TEST(SchedulerTest, SequenceThatWaitsForABlockDoesNotUseUpItsTurn) {
  const std::vector<ResidentView> resident = {Decoding(1, 8, 2, 9), Decoding(2, 9, 2, 5)};
  EXPECT_EQ(Rows(Decide(resident, {}, 0, {1, 8, 4})), (RowMap{{1, 1}}));
}

TEST(SchedulerTest, PrefillIsNotStarvedByDecode) {
  const std::vector<ResidentView> resident = {Decoding(1, 8, 2), Decoding(2, 8, 2), Prefilling(3, 20, 0, 5, 99)};
  EXPECT_EQ(Rows(Decide(resident, {}, 9, {2, 8, 4})), (RowMap{{1, 1}, {3, 1}}));
  EXPECT_FALSE(Rows(Decide(resident, {}, 9, {1, 8, 4}, 100)).contains(3));
  EXPECT_TRUE(Rows(Decide(resident, {}, 9, {1, 8, 4}, 103)).contains(3));
}

// The scheduler against a world of bare counts: arrivals, imports that hold leases for a while, deadlines.
struct World {
  struct Seq {
    int prompt = 0, output = 0;  // wanted
    int tokens = 0, computed = 0, blocks = 0;
    int64_t last_step = 0;
    absl::Time deadline = absl::InfiniteFuture();
  };
  struct Lease {
    int blocks;
    int64_t until;
    bool arrives;  // as a sequence
  };

  explicit World(uint64_t seed) : rng(seed) {
    limits.max_batch_tokens = 1 + static_cast<int>(rng() % (rng() % 2 == 0 ? 8 : 512));
    limits.max_sequences = 1 + static_cast<int>(rng() % 16);
    limits.block_size = 1 << rng() % 5;
    total = 12 + static_cast<int64_t>(rng() % 60);
    free = total;
    max_tokens = static_cast<int>(total) * limits.block_size;
  }

  int Blocks(int tokens) const { return (tokens + limits.block_size - 1) / limits.block_size; }

  void Arrive(int64_t step) {
    const uint64_t id = next_id++;
    const int size = 1 + static_cast<int>(rng() % max_tokens);
    if (rng() % 4 == 0) {
      rooms[id] = Blocks(size);
      return;
    }
    Seq seq;
    seq.prompt = 1 + static_cast<int>(rng() % size);
    seq.output = size - seq.prompt + 1;  // the last output is never computed
    seq.tokens = seq.prompt;
    if (rng() % 8 == 0) seq.deadline = Time(step + static_cast<int64_t>(rng() % 60));
    waiting[id] = seq;
  }

  static absl::Time Time(int64_t step) { return absl::UnixEpoch() + absl::Seconds(step); }

  void EndLeases(int64_t step) {
    for (size_t i = 0; i < leases.size();) {
      if (leases[i].until > step) {
        ++i;
        continue;
      }
      if (leases[i].arrives) {
        Seq seq;
        seq.prompt = seq.computed = leases[i].blocks * limits.block_size;
        seq.tokens = seq.prompt + 1;
        seq.output = std::max(1, std::min<int>(static_cast<int>(rng() % 20), max_tokens - seq.prompt + 1));
        seq.blocks = leases[i].blocks;
        seq.last_step = step;
        resident[next_id++] = seq;
        if (seq.output == 1) {
          free += seq.blocks;
          resident.erase(std::prev(resident.end()));
        }
      } else {
        free += leases[i].blocks;
      }
      leases.erase(leases.begin() + static_cast<int64_t>(i));
    }
  }

  Decision Plan(int64_t step) {
    std::vector<ResidentView> views;
    for (const auto& [id, s] : resident) {
      views.push_back({id, s.tokens, s.computed, s.blocks, s.blocks, s.last_step, s.deadline});
    }
    std::vector<WaitingView> queue;
    for (const auto& [id, s] : waiting) {
      queue.push_back({id, WaitingView::Kind::kSequence, s.tokens, Blocks(s.tokens), s.deadline});
    }
    for (const auto& [id, blocks] : rooms) queue.push_back(Room(id, blocks));
    std::ranges::sort(queue, {}, &WaitingView::id);
    SchedulerState state{Time(step), step, free, views, queue, nullptr};
    return Schedule(state, limits);
  }

  void Apply(const Decision& d, int64_t step) {
    for (uint64_t id : d.expired) {
      if (resident.contains(id)) free += resident[id].blocks;
      resident.erase(id);
      waiting.erase(id);
    }
    for (uint64_t id : d.preempted) {
      ASSERT_TRUE(resident.contains(id));
      ASSERT_NE(id, resident.begin()->first) << "the oldest was preempted";
      Seq seq = resident[id];
      free += seq.blocks;
      seq.blocks = seq.computed = 0;
      resident.erase(id);
      waiting[id] = seq;
    }
    for (uint64_t id : d.admitted) {
      Seq seq = waiting.at(id);
      waiting.erase(id);
      seq.blocks = Blocks(seq.tokens);
      seq.last_step = step;
      free -= seq.blocks;
      resident[id] = seq;
    }
    for (uint64_t id : d.granted) {
      free -= rooms.at(id);
      leases.push_back({rooms[id], step + 1 + static_cast<int64_t>(rng() % 30), rng() % 2 == 0});
      rooms.erase(id);
    }
    // Nothing younger of the queue went before its head.
    const uint64_t head = std::min(waiting.empty() ? UINT64_MAX : waiting.begin()->first,
                                   rooms.empty() ? UINT64_MAX : rooms.begin()->first);
    if (d.preempted.empty()) {
      for (uint64_t id : d.admitted) ASSERT_LT(id, head);
      for (uint64_t id : d.granted) ASSERT_LT(id, head);
    }
    int rows = 0;
    for (const ScheduledRows& r : d.rows) {
      ASSERT_TRUE(resident.contains(r.id));
      Seq& seq = resident[r.id];
      if (r.grow) {
        ++seq.blocks;
        --free;
      }
      rows += r.num_rows;
      ASSERT_GE(r.num_rows, 1);
      seq.last_step = step;
      seq.computed += r.num_rows;
      ASSERT_LE(seq.computed, seq.tokens);
      ASSERT_LE(seq.computed, seq.blocks * limits.block_size) << "no block for a row";
      if (seq.computed < seq.tokens) continue;
      ++seq.tokens;
      if (seq.tokens - seq.prompt < seq.output) continue;
      free += seq.blocks;
      resident.erase(r.id);
    }
    ASSERT_GE(free, 0) << "promised more blocks than there are";
    ASSERT_LE(rows, limits.max_batch_tokens);
    ASSERT_LE(static_cast<int>(d.rows.size()), limits.max_sequences);
  }

  int64_t Held() const {
    int64_t held = 0;
    for (const auto& [id, s] : resident) held += s.blocks;
    for (const auto& lease : leases) held += lease.blocks;
    return held;
  }

  std::mt19937_64 rng;
  SchedulerLimits limits;
  int64_t total, free;
  int max_tokens;
  uint64_t next_id = 1;
  std::map<uint64_t, Seq> resident, waiting;
  std::map<uint64_t, int> rooms;
  std::vector<Lease> leases;
};

TEST(SchedulerTest, EveryRequestEndsInAThousandRandomWorlds) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    int arrivals = 20;
    for (int64_t step = 1; arrivals > 0 || !world.resident.empty() || !world.waiting.empty() || !world.rooms.empty() ||
                           !world.leases.empty();
         ++step) {
      ASSERT_LT(step, 200000) << "does not end";
      if (arrivals > 0 && world.rng() % 3 == 0) {
        world.Arrive(step);
        --arrivals;
      }
      world.EndLeases(step);
      const Decision decision = world.Plan(step);
      preemptions += static_cast<int64_t>(decision.preempted.size());
      if (decision.empty()) {
        ASSERT_TRUE(!world.leases.empty() || (world.resident.empty() && world.waiting.empty() && world.rooms.empty()))
            << "stuck at step " << step;
      }
      ASSERT_NO_FATAL_FAILURE(world.Apply(decision, step));
      ASSERT_EQ(world.free + world.Held(), world.total);
    }
  }
  EXPECT_GT(preemptions, 1000);
}

}  // namespace
}  // namespace baton::engine
