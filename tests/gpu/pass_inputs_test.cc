// What goes up for a pass: the rows' places, and plans that are the same from step to step of a bucket.
#include "kernels/cuda/pass_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/attention_plan.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kBlockSize = 16;
const AttentionShape kShapes[] = {{.num_kv_heads = 2, .head_dim = 64, .group = 3},
                                  {.num_kv_heads = 1, .head_dim = 64, .group = 20, .sliding_window = 700}};

// Sequences of one row each at these positions, and what their chunks point to.
struct Decodes {
  explicit Decodes(const std::vector<int>& positions) {
    for (const int position : positions) {
      tables.emplace_back();
      for (int b = 0; b <= position / kBlockSize; ++b) tables.back().push_back(1000 * static_cast<int>(tables.size()) + b);
    }
    for (size_t i = 0; i < positions.size(); ++i) chunks.push_back({static_cast<int>(i), 1, positions[i], tables[i]});
  }
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceChunk> chunks;
};

template <typename T>
std::vector<T> At(const PassInputs& inputs, size_t offset, size_t count) {
  EXPECT_EQ(offset % alignof(T), 0u);
  EXPECT_LE(offset + count * sizeof(T), inputs.image().size());
  std::vector<T> values(count);
  std::memcpy(values.data(), inputs.image().data() + offset, count * sizeof(T));
  return values;
}

TEST(PassInputsTest, RowsHaveTheirPositionsAndBlocksAndOthersNone) {
  const std::vector<int32_t> first = {7, 5}, second = {9};
  const SequenceChunk chunks[] = {{0, 3, 14, first}, {4, 1, 2, second}};
  PassInputs inputs;
  inputs.Build(chunks, kBlockSize, kShapes, 6, 0);
  EXPECT_EQ(inputs.rows(), 6);
  EXPECT_EQ(At<int32_t>(inputs, inputs.positions(), 6), (std::vector<int32_t>{14, 15, 16, 0, 2, 0}));
  EXPECT_EQ(At<int32_t>(inputs, inputs.block_ids(), 6), (std::vector<int32_t>{7, 7, 5, -1, 9, -1}));
  EXPECT_EQ(At<int32_t>(inputs, inputs.block_tables(), 3), (std::vector<int32_t>{7, 5, 9}));
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const KvLayout layout = {.num_kv_heads = kShapes[i].num_kv_heads, .head_dim = 64};
    const AttentionPlan plan = PlanAttention(chunks, layout, kShapes[i].group, kShapes[i].sliding_window);
    const PassInputs::Plan& got = inputs.plan(i);
    ASSERT_EQ(got.num_prefill, static_cast<int>(plan.prefill.size()));
    ASSERT_EQ(got.num_decode, static_cast<int>(plan.decode.size()));
    EXPECT_EQ(got.max_pieces, plan.max_pieces);
    const auto prefill = At<AttentionUnit>(inputs, got.prefill, plan.prefill.size());
    const auto decode = At<AttentionUnit>(inputs, got.decode, plan.decode.size());
    EXPECT_EQ(std::memcmp(prefill.data(), plan.prefill.data(), prefill.size() * sizeof(AttentionUnit)), 0);
    EXPECT_EQ(std::memcmp(decode.data(), plan.decode.data(), decode.size() * sizeof(AttentionUnit)), 0);
    EXPECT_GE(inputs.record_floats(), plan.record_floats);
  }
}

TEST(PassInputsTest, StepsOfABucketDifferInNothingThatAKernelIsGiven) {
  const Decodes some({3, 1600, 40}), other({1100, 2, 0, 555, 1535, 9, 1200});
  ASSERT_EQ(PieceBucket(some.chunks), 4);
  ASSERT_EQ(PieceBucket(other.chunks), 4);
  PassInputs a, b;
  a.Build(some.chunks, kBlockSize, kShapes, 8, 4);
  b.Build(other.chunks, kBlockSize, kShapes, 8, 4);
  EXPECT_EQ(a.positions(), b.positions());
  EXPECT_EQ(a.block_ids(), b.block_ids());
  EXPECT_EQ(a.block_tables(), b.block_tables());
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    EXPECT_EQ(a.plan(i).decode, b.plan(i).decode);
    EXPECT_EQ(a.plan(i).num_decode, b.plan(i).num_decode);
    EXPECT_EQ(a.plan(i).num_prefill, 0);
    EXPECT_EQ(b.plan(i).num_prefill, 0);
    EXPECT_EQ(a.plan(i).max_pieces, b.plan(i).max_pieces);
    int with_work = 0;
    for (const AttentionUnit& unit : At<AttentionUnit>(a, a.plan(i).decode, a.plan(i).num_decode)) {
      EXPECT_LE(unit.num_pieces, a.plan(i).max_pieces);
      EXPECT_EQ(unit.num_heads > 0, unit.num_pieces > 0);
      with_work += unit.num_heads > 0;
    }
    EXPECT_EQ(with_work, 3 * (i == 0 ? 1 : 3)) << "20 heads of a group are three units";
  }
}

// A grid has room for all that a window may reach into, wherever the position lies.
TEST(PassInputsTest, NoUnitHasMorePiecesThanItsGrid) {
  for (const int window : {0, 1, 2, 511, 512, 513, 514, 1024, 1025, 5000}) {
    const AttentionShape shapes[] = {{.num_kv_heads = 1, .head_dim = 8, .group = 1, .sliding_window = window}};
    int most = 0;
    for (int position = 0; position < 2600; ++position) {
      const std::vector<int32_t> table(position / kBlockSize + 1);
      const SequenceChunk chunks[] = {{0, 1, position, table}};
      PassInputs inputs;
      inputs.Build(chunks, kBlockSize, shapes, 1, PieceBucket(chunks));
      const AttentionUnit unit = At<AttentionUnit>(inputs, inputs.plan(0).decode, 1)[0];
      ASSERT_LE(unit.num_pieces, inputs.plan(0).max_pieces) << position << " with a window of " << window;
      most = std::max(most, inputs.plan(0).max_pieces);
    }
    EXPECT_EQ(most, window == 0 || window == 5000 ? 8 : std::min(8, (window + 510) / 512 + 1)) << window;
  }
}

TEST(PassInputsTest, OnlyStepsOfSingleRowsInARowDecode) {
  const std::vector<int32_t> table = {0};
  EXPECT_TRUE(OnlyDecodes(std::vector<SequenceChunk>{{0, 1, 3, table}, {1, 1, 0, table}}));
  EXPECT_FALSE(OnlyDecodes(std::vector<SequenceChunk>{{0, 1, 3, table}, {1, 2, 0, table}}));
  EXPECT_FALSE(OnlyDecodes(std::vector<SequenceChunk>{{0, 1, 3, table}, {2, 1, 0, table}}));
  EXPECT_FALSE(OnlyDecodes({}));
}

}  // namespace
}  // namespace baton::kernels::cuda
