#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "kvcache/prefix_index.h"

namespace baton::kvcache {
namespace {

kernels::KvLayout SmallLayout() { return {kernels::DType::kF16, 4, 2, 1, 8}; }

std::shared_ptr<BlockPool> MakePool(int64_t num_blocks) { return BlockPool::Create(SmallLayout(), num_blocks).value(); }

void ExpectLedger(const BlockPool& pool, int64_t free, int64_t active, int64_t leased, int64_t cached,
                  int64_t quarantined) {
  const Ledger ledger = pool.ledger();
  EXPECT_TRUE(ledger.Balanced());
  EXPECT_EQ(ledger.free, free);
  EXPECT_EQ(ledger.active, active);
  EXPECT_EQ(ledger.leased, leased);
  EXPECT_EQ(ledger.cached, cached);
  EXPECT_EQ(ledger.quarantined, quarantined);
}

bool SameLedger(const Ledger& a, const Ledger& b) {
  return a.total == b.total && a.free == b.free && a.active == b.active && a.leased == b.leased &&
         a.cached == b.cached && a.quarantined == b.quarantined;
}

TEST(BlockPoolTest, RefusesSizesThatOverflowOrAreEmpty) {
  EXPECT_EQ(BlockPool::Create(SmallLayout(), 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::Create(SmallLayout(), -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::Create(SmallLayout(), int64_t{1} << 40).status().code(), absl::StatusCode::kInvalidArgument);
  kernels::KvLayout huge{kernels::DType::kF32, 1 << 30, 1 << 30, 1 << 30, 1 << 30};
  EXPECT_EQ(BlockPool::Create(huge, 1 << 30).status().code(), absl::StatusCode::kInvalidArgument);
  kernels::KvLayout negative = SmallLayout();
  negative.head_dim = -8;
  EXPECT_EQ(BlockPool::Create(negative, 4).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BlockPoolTest, MemoryIsAlignedAndLazilyTouched) {
  // 64 GiB of address space would not fit in memory if it were touched.
  kernels::KvLayout layout{kernels::DType::kF16, 16, 32, 8, 128};
  auto pool = BlockPool::Create(layout, (int64_t{64} << 30) / static_cast<int64_t>(layout.block_bytes()));
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*pool)->view().base) % 64, 0u);
}

TEST(BlockPoolTest, ALeaseBehindAPrefixSplitsAndJoins) {
  auto pool = MakePool(8);
  auto prefix = pool->Allocate(3);
  auto lease = pool->AllocateLeaseBehind(*prefix, 2);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->num_held(), 3u);
  EXPECT_EQ(lease->blocks().size(), 5u);
  ExpectLedger(*pool, 3, 0, 5, 0, 0);
  EXPECT_FALSE(pool->AllocateLeaseBehind(*prefix, 4)) << "all or nothing";
  const std::vector<BlockHandle> all(lease->blocks().begin(), lease->blocks().end());
  BlockLease room = lease->SplitOff(lease->num_held());
  EXPECT_EQ(room.num_held(), 0u);
  EXPECT_EQ(room.blocks().size(), 2u);
  EXPECT_EQ(lease->num_held(), 3u);
  EXPECT_TRUE(lease->SplitOff(3).empty());
  // What a fetch wrote can be in quarantine while the prefix goes on.
  lease->Join(std::move(room));
  EXPECT_TRUE(std::equal(all.begin(), all.end(), lease->blocks().begin(), lease->blocks().end()));
  room = lease->SplitOff(3);
  const uint64_t token = room.Quarantine();
  lease->Reset();
  prefix->Reset();
  ExpectLedger(*pool, 6, 0, 0, 0, 2);
  EXPECT_TRUE(pool->EndQuarantine(token).ok());
  ExpectLedger(*pool, 8, 0, 0, 0, 0);
  // Without a prefix, and with nothing but one.
  auto none = pool->AllocateLeaseBehind({}, 2);
  EXPECT_EQ(none->num_held(), 0u);
  BlockLease whole = none->SplitOff(0);
  EXPECT_TRUE(none->empty());
  EXPECT_EQ(whole.blocks().size(), 2u);
  none->Join(std::move(whole));
  EXPECT_EQ(none->blocks().size(), 2u);
}

TEST(BlockPoolTest, AllocationIsAllOrNothing) {
  auto pool = MakePool(4);
  auto three = pool->Allocate(3);
  ASSERT_TRUE(three);
  EXPECT_FALSE(pool->Allocate(2));
  ExpectLedger(*pool, 1, 3, 0, 0, 0);
  EXPECT_FALSE(pool->AllocateLease(2));
  ExpectLedger(*pool, 1, 3, 0, 0, 0);
  three.reset();
  ExpectLedger(*pool, 4, 0, 0, 0, 0);
}

TEST(BlockPoolTest, ReusedBlockHasANewGenerationAndNoOldBytes) {
  auto pool = MakePool(1);
  BlockHandle old;
  {
    auto lease = pool->AllocateLease(1);
    old = lease->blocks()[0];
    std::memset(lease->bytes(0).data(), 0xAB, lease->bytes(0).size());
    EXPECT_TRUE(pool->IsCurrent(old));
  }
  EXPECT_FALSE(pool->IsCurrent(old));
  auto table = pool->Allocate(1);
  EXPECT_EQ(pool->generation(table->ids()[0]), old.generation + 1);
  EXPECT_FALSE(pool->IsCurrent(old));
  for (size_t i = 0; i < pool->layout().block_bytes(); ++i) {
    ASSERT_EQ(pool->view().block(table->ids()[0])[i], std::byte{0}) << "byte " << i << " of an earlier tenant";
  }
}

TEST(BlockPoolTest, SharedBlockIsFreeOnlyAfterItsLastHolder) {
  auto pool = MakePool(4);
  auto table = pool->Allocate(3);
  EXPECT_EQ(table->Releasable(), 3);
  BlockTable sibling = table->Share(2);
  EXPECT_EQ(table->Releasable(), 1);
  EXPECT_EQ(sibling.Releasable(), 0);
  table.reset();
  ExpectLedger(*pool, 2, 2, 0, 0, 0);
  EXPECT_EQ(sibling.Releasable(), 2);
  sibling.Reset();
  ExpectLedger(*pool, 4, 0, 0, 0, 0);
}

TEST(BlockPoolTest, ExportKeepsTheBytesWithoutPassingThroughFree) {
  auto pool = MakePool(4);
  auto table = pool->Allocate(2);
  const BlockId first = table->ids()[0];
  pool->view().block(first)[7] = std::byte{42};
  const uint64_t generation = pool->generation(first);
  BlockLease lease = pool->Lease(*table, 2);
  ExpectLedger(*pool, 2, 0, 2, 0, 0);  // leased wins over active
  table.reset();
  ExpectLedger(*pool, 2, 0, 2, 0, 0);
  ASSERT_TRUE(lease.Valid());
  EXPECT_EQ(lease.blocks()[0], (BlockHandle{first, generation}));
  EXPECT_EQ(lease.bytes(0)[7], std::byte{42});
  lease.Reset();
  ExpectLedger(*pool, 4, 0, 0, 0, 0);
}

TEST(BlockPoolTest, ImportTurnsALeaseIntoATableInPlace) {
  auto pool = MakePool(4);
  auto lease = pool->AllocateLease(3);
  const std::vector<BlockHandle> handles(lease->blocks().begin(), lease->blocks().end());
  lease->bytes(2)[0] = std::byte{9};
  auto table = pool->Adopt(*std::move(lease));
  ASSERT_TRUE(table.ok());
  ExpectLedger(*pool, 1, 3, 0, 0, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table->ids()[i], handles[i].id);
    EXPECT_EQ(pool->generation(handles[i].id), handles[i].generation);
  }
  EXPECT_EQ(pool->view().block(handles[2].id)[0], std::byte{9});
}

TEST(BlockPoolTest, AdoptRefusesForeignAndEmptyLeasesAndLeavesThemAlone) {
  auto ours = MakePool(2);
  auto theirs = MakePool(2);
  auto foreign = theirs->AllocateLease(1);
  EXPECT_EQ(ours->Adopt(*std::move(foreign)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(foreign->empty());
  ExpectLedger(*theirs, 1, 0, 1, 0, 0);
  EXPECT_EQ(ours->Adopt(BlockLease()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BlockPoolTest, QuarantinedBlocksAreUnusableUntilTheWriterIsGone) {
  auto pool = MakePool(2);
  int wakeups = 0;
  pool->SetReleaseCallback([&] { ++wakeups; });
  auto lease = pool->AllocateLease(2);
  const uint64_t token = lease->Quarantine();
  EXPECT_TRUE(lease->empty());
  ExpectLedger(*pool, 0, 0, 0, 0, 2);
  EXPECT_FALSE(pool->Allocate(1));
  EXPECT_EQ(wakeups, 0);
  EXPECT_EQ(pool->EndQuarantine(token + 1).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(pool->EndQuarantine(token).ok());
  EXPECT_EQ(wakeups, 1);
  EXPECT_EQ(pool->EndQuarantine(token).code(), absl::StatusCode::kNotFound);
  ExpectLedger(*pool, 2, 0, 0, 0, 0);
}

TEST(BlockPoolTest, LeaseMayOutliveItsOwner) {
  auto pool = MakePool(2);
  auto lease = pool->AllocateLease(1);
  pool.reset();
  lease->bytes(0)[0] = std::byte{1};
  EXPECT_TRUE(lease->Valid());
}

TEST(BlockPoolTest, CloneCopiesTheWholeBlock) {
  auto pool = MakePool(2);
  auto table = pool->Allocate(1);
  const size_t bytes = pool->layout().block_bytes();
  std::memset(pool->view().block(table->ids()[0]), 0x5C, bytes);
  auto copy = pool->Clone(table->ids()[0]);
  ASSERT_TRUE(copy);
  EXPECT_NE(copy->handle().id, table->ids()[0]);
  EXPECT_EQ(std::memcmp(pool->view().block(copy->handle().id), pool->view().block(table->ids()[0]), bytes), 0);
  EXPECT_FALSE(pool->Clone(table->ids()[0]));
}

// The ledger against a recount from the holders, and against what the test itself holds, after every operation.
TEST(BlockPoolTest, LedgerAddsUpUnderRandomOperations) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    auto pool = MakePool(1 + rng() % 24);
    PrefixIndex index(pool.get());
    std::vector<BlockTable> tables;
    std::vector<BlockLease> leases;
    std::vector<uint64_t> quarantines;
    const auto pick = [&](auto& items) -> auto& { return items[rng() % items.size()]; };
    const auto drop = [&](auto& items) {
      std::swap(items[rng() % items.size()], items.back());
      items.pop_back();
    };
    for (int op = 0; op < 2000; ++op) {
      switch (rng() % 12) {
        case 0:
        case 1:
          if (auto table = pool->Allocate(1 + rng() % 5)) tables.push_back(*std::move(table));
          break;
        case 2:
          if (auto lease = pool->AllocateLease(1 + rng() % 5)) leases.push_back(*std::move(lease));
          break;
        case 3:
          if (!tables.empty()) drop(tables);
          break;
        case 4:
          if (!leases.empty()) drop(leases);
          break;
        case 5:
          if (!tables.empty()) {
            BlockTable& table = pick(tables);
            leases.push_back(pool->Lease(table, 1 + rng() % table.size()));
          }
          break;
        case 6:
          if (!leases.empty()) {
            std::swap(pick(leases), leases.back());
            tables.push_back(pool->Adopt(std::move(leases.back())).value());
            leases.pop_back();
          }
          break;
        case 7:
          if (!leases.empty()) {
            std::swap(pick(leases), leases.back());
            quarantines.push_back(leases.back().Quarantine());
            leases.pop_back();
          }
          break;
        case 8:
          if (!quarantines.empty()) {
            std::swap(pick(quarantines), quarantines.back());
            ASSERT_TRUE(pool->EndQuarantine(quarantines.back()).ok());
            quarantines.pop_back();
          }
          break;
        case 9:
          if (!tables.empty()) {
            BlockTable& table = pick(tables);
            BlockTable shared = table.Share(1 + rng() % table.size());
            tables.push_back(std::move(shared));
          }
          break;
        case 10:
          if (!tables.empty()) {
            PrefixIndex::Cursor cursor = index.Root("t");
            const std::vector<int32_t> tokens(4, static_cast<int32_t>(rng() % 16));
            index.Insert(&cursor, tokens, pick(tables).ids()[0]);
          }
          break;
        case 11: {
          PrefixIndex::Cursor cursor;
          const std::vector<int32_t> tokens(4, static_cast<int32_t>(rng() % 16));
          BlockTable hit = index.Match("t", tokens, 1, &cursor);
          if (!hit.empty()) tables.push_back(std::move(hit));
          if (rng() % 4 == 0) index.EnsureFree(rng() % 4);
          break;
        }
      }
      const Ledger ledger = pool->ledger();
      ASSERT_TRUE(ledger.Balanced()) << "operation " << op;
      ASSERT_TRUE(SameLedger(ledger, pool->RecountForTest())) << "operation " << op;
      std::set<BlockId> held;
      for (const auto& table : tables) held.insert(table.ids().begin(), table.ids().end());
      for (const auto& lease : leases) {
        ASSERT_TRUE(lease.Valid());
        for (const auto& handle : lease.blocks()) held.insert(handle.id);
      }
      ASSERT_LE(static_cast<int64_t>(held.size()), ledger.active + ledger.leased + ledger.quarantined);
      for (BlockId id : held) ASSERT_NE(pool->state(id), BlockState::kFree);
    }
    tables.clear();
    leases.clear();
    for (uint64_t token : quarantines) ASSERT_TRUE(pool->EndQuarantine(token).ok());
    index.Clear();
    EXPECT_EQ(pool->ledger().free, pool->num_blocks());
  }
}

TEST(BlockPoolTest, LeasesMoveBetweenThreads) {
  auto pool = MakePool(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 rng(t);
      std::vector<BlockLease> leases;
      for (int i = 0; i < 2000; ++i) {
        if (auto lease = pool->AllocateLease(1 + rng() % 8)) leases.push_back(*std::move(lease));
        if (leases.size() > 3 || (!leases.empty() && rng() % 2 == 0)) {
          if (rng() % 4 == 0) {
            EXPECT_TRUE(pool->EndQuarantine(leases.back().Quarantine()).ok());
          }
          leases.pop_back();
        }
        EXPECT_TRUE(pool->ledger().Balanced());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ExpectLedger(*pool, 64, 0, 0, 0, 0);
}

}  // namespace
}  // namespace baton::kvcache
