#include "kvcache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

namespace baton::kvcache {
namespace {

constexpr int kBlock = 4;

std::shared_ptr<BlockPool> MakePool(int64_t num_blocks) {
  return BlockPool::Create({kernels::DType::kF16, kBlock, 1, 1, 4}, num_blocks).value();
}

std::vector<int32_t> Range(int32_t first, int count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computes a sequence's blocks as an engine would: hit, allocate the rest, insert what is full.
BlockTable Fill(BlockPool& pool, PrefixIndex& index, const std::string& tenant, const std::vector<int32_t>& tokens) {
  PrefixIndex::Cursor cursor;
  BlockTable table = index.Match(tenant, tokens, static_cast<int>(tokens.size()) / kBlock, &cursor);
  const int hit = table.size();
  const int64_t rest = pool.BlocksFor(tokens.size()) - hit;
  EXPECT_TRUE(index.EnsureFree(rest));
  table.Append(pool.Allocate(rest).value());
  for (int b = hit; (b + 1) * kBlock <= static_cast<int>(tokens.size()); ++b) {
    if (!index.Insert(&cursor, std::span(tokens).subspan(b * kBlock, kBlock), table.ids()[b])) break;
  }
  return table;
}

TEST(PrefixHashTest, NamesDependOnTenantBlockSizeOrderAndEveryToken) {
  const auto base = PrefixHashes("a", Range(0, 8), 4, 9);
  ASSERT_EQ(base.size(), 2u);
  EXPECT_EQ(PrefixHashes("a", Range(0, 11), 4, 9), base);
  EXPECT_NE(PrefixHashes("b", Range(0, 8), 4, 9)[0], base[0]);
  EXPECT_NE(PrefixHashes("a", Range(0, 8), 8, 9)[0], base[1]);
  auto swapped = Range(0, 8);
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(PrefixHashes("a", swapped, 4, 9)[0], base[0]);
  EXPECT_NE(PrefixHashes("a", swapped, 4, 9)[1], base[1]);  // the chain carries it on
  EXPECT_EQ(PrefixHashes("a", Range(0, 8), 4, 1).size(), 1u);
}

TEST(PrefixIndexTest, HitIsTheLongestCommonRunOfFullBlocks) {
  auto pool = MakePool(16);
  PrefixIndex index(pool.get());
  auto tokens = Range(0, 14);
  const BlockTable first = Fill(*pool, index, "t", tokens);
  EXPECT_EQ(index.size(), 3);  // the partly filled fourth block is not sealed
  tokens[9] = 77;              // in the third block
  const auto hit = index.Peek("t", tokens, 99);
  EXPECT_EQ(hit.blocks, 2);
  EXPECT_EQ(hit.cached_blocks, 0);  // `first` still holds them
  EXPECT_EQ(index.Peek("t", tokens, 1).blocks, 1);
  PrefixIndex::Cursor cursor;
  const BlockTable match = index.Match("t", tokens, 99, &cursor);
  ASSERT_EQ(match.size(), 2);
  EXPECT_EQ(match.ids()[0], first.ids()[0]);
  EXPECT_EQ(match.ids()[1], first.ids()[1]);
}

TEST(PrefixIndexTest, TenantsDoNotShare) {
  auto pool = MakePool(16);
  PrefixIndex index(pool.get());
  Fill(*pool, index, "alice", Range(0, 8));
  EXPECT_EQ(index.Peek("bob", Range(0, 8), 9).blocks, 0);
  EXPECT_EQ(index.Peek("", Range(0, 8), 9).blocks, 0);
  EXPECT_EQ(index.Peek("alice", Range(0, 8), 9).blocks, 2);
}

TEST(PrefixIndexTest, EvictsLeastRecentlyUsedAndTailBeforeHead) {
  auto pool = MakePool(6);
  PrefixIndex index(pool.get());
  Fill(*pool, index, "t", Range(0, 12)).Reset();    // 3 blocks, older
  Fill(*pool, index, "t", Range(100, 12)).Reset();  // 3 blocks, newer
  EXPECT_EQ(pool->ledger().cached, 6);
  ASSERT_TRUE(index.EnsureFree(1));
  EXPECT_EQ(index.Peek("t", Range(0, 12), 9).blocks, 2);  // lost its tail only
  EXPECT_EQ(index.Peek("t", Range(100, 12), 9).blocks, 3);
  // Using the older one makes it the newer.
  PrefixIndex::Cursor cursor;
  index.Match("t", Range(0, 12), 9, &cursor).Reset();
  ASSERT_TRUE(index.EnsureFree(4));
  EXPECT_EQ(index.Peek("t", Range(0, 12), 9).blocks, 2);
  EXPECT_EQ(index.Peek("t", Range(100, 12), 9).blocks, 0);
}

TEST(PrefixIndexTest, BlocksInUseAreNeverEvicted) {
  auto pool = MakePool(4);
  PrefixIndex index(pool.get());
  const BlockTable held = Fill(*pool, index, "t", Range(0, 8));
  BlockLease lease = pool->Lease(Fill(*pool, index, "t", Range(50, 4)), 1);
  EXPECT_TRUE(index.EnsureFree(1));
  EXPECT_FALSE(index.EnsureFree(2));
  EXPECT_EQ(index.Peek("t", Range(0, 8), 9).blocks, 2);
  lease.Reset();
  EXPECT_TRUE(index.EnsureFree(2));
}

// Every name collides: the chain is then worthless, and only the comparison of tokens and parents stands between one
// tenant and another's KV.
TEST(PrefixIndexTest, CollidingNamesNeverGiveForeignBlocks) {
  for (int num_names : {1, 2, 3}) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      auto pool = MakePool(24);
      PrefixIndex index(pool.get(), [num_names](const PrefixHash&, std::span<const int32_t> tokens) {
        PrefixHash hash;
        hash.bytes[0] = static_cast<uint8_t>(tokens[0] % num_names + 1);
        return hash;
      });
      std::mt19937 rng(seed);
      std::map<BlockId, std::string> content;  // block: the tenant and the whole prefix that it holds
      std::vector<BlockTable> running;
      for (int op = 0; op < 200; ++op) {
        const std::string tenant(1, static_cast<char>('a' + rng() % 2));
        std::vector<int32_t> tokens(kBlock * (1 + rng() % 3));
        for (auto& token : tokens) token = static_cast<int32_t>(rng() % 2);
        const auto name = [&](int block) {
          return tenant + ":" + std::string(tokens.begin(), tokens.begin() + (block + 1) * kBlock);
        };
        PrefixIndex::Cursor cursor;
        BlockTable table = index.Match(tenant, tokens, 9, &cursor);
        for (int b = 0; b < table.size(); ++b) ASSERT_EQ(content[table.ids()[b]], name(b)) << "foreign block";
        const int hit = table.size();
        const int rest = static_cast<int>(tokens.size()) / kBlock - hit;
        while (!index.EnsureFree(rest)) running.erase(running.begin());
        table.Append(pool->Allocate(rest).value());
        bool sealing = true;
        for (int b = hit; b < table.size(); ++b) {
          content[table.ids()[b]] = name(b);
          sealing = sealing && index.Insert(&cursor, std::span(tokens).subspan(b * kBlock, kBlock), table.ids()[b]);
        }
        running.push_back(std::move(table));
        if (running.size() > 4) running.erase(running.begin() + rng() % running.size());
        ASSERT_TRUE(pool->ledger().Balanced());
      }
    }
  }
}

// A child whose parent was evicted and computed anew hangs off a dead parent; its name must not be blocked for ever.
TEST(PrefixIndexTest, OrphanedChildIsReplaced) {
  auto pool = MakePool(8);
  PrefixIndex index(pool.get());
  BlockTable holder = Fill(*pool, index, "t", Range(0, 8));
  // A second computation of the same tokens that does not look at the index: its blocks are duplicates.
  PrefixIndex::Cursor cursor = index.Root("t");
  BlockTable duplicate = pool->Allocate(3).value();
  EXPECT_TRUE(index.Insert(&cursor, Range(0, 4), duplicate.ids()[0]));
  EXPECT_TRUE(index.Insert(&cursor, Range(4, 4), duplicate.ids()[1]));
  EXPECT_TRUE(index.Insert(&cursor, Range(8, 4), duplicate.ids()[2]));
  EXPECT_EQ(index.size(), 3);
  holder.Reset();
  ASSERT_TRUE(index.EnsureFree(5));  // evicts both of holder's blocks; the third entry is held by `duplicate`
  EXPECT_EQ(index.size(), 1);
  EXPECT_EQ(index.Peek("t", Range(0, 12), 9).blocks, 0);
  duplicate.Reset();
  BlockTable again = Fill(*pool, index, "t", Range(0, 12));
  EXPECT_EQ(index.Peek("t", Range(0, 12), 9).blocks, 3);
}

TEST(PrefixIndexTest, DeadCursorStopsInserting) {
  auto pool = MakePool(4);
  PrefixIndex index(pool.get());
  PrefixIndex::Cursor cursor = index.Root("t");
  BlockTable table = pool->Allocate(2).value();
  BlockTable first = table.Share(1);
  ASSERT_TRUE(index.Insert(&cursor, Range(0, 4), table.ids()[0]));
  index.Clear();
  EXPECT_FALSE(index.Insert(&cursor, Range(4, 4), table.ids()[1]));
  EXPECT_EQ(index.size(), 0);
}

}  // namespace
}  // namespace baton::kvcache
