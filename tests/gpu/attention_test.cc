// Paged attention on the emulator against the CPU's plain C++ kernels, bit for bit: prefill in chunks of any size,
// decode over pieces, batches of both. On tensor cores against the definition with rounded operands, and prefill
// against decode.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

struct Case {
  const char* name;
  int num_heads, num_kv_heads, head_dim, block_size, length;
  DType dtype = DType::kF16;
  int window = 0;
  float softcap = 0;
  int first = 0;  // the position from which on attention is computed
};

const Case kCases[] = {
    {"smollm", 9, 3, 64, 16, 83},
    {"gemma", 3, 1, 256, 16, 67, DType::kF16, 33},
    {"softcap", 4, 2, 64, 8, 70, DType::kBF16, 0, 30.0f},
    {"plain", 2, 2, 128, 32, 67, DType::kF32},
    {"odd", 6, 2, 40, 5, 75, DType::kF16, 17},
    {"wide_group", 35, 1, 16, 16, 21},
    {"pieces", 2, 1, 16, 16, 1034, DType::kF16, 0, 0, 1010},
    {"piece_window", 2, 1, 16, 16, 520, DType::kBF16, 300, 0, 500},
    {"window_at_a_piece", 1, 1, 8, 16, 1030, DType::kF16, 10, 0, 1020},
    {"one_block", 4, 4, 80, 64, 50, DType::kBF16},
    {"window_of_128", 4, 2, 128, 16, 67, DType::kF16, 33},
};

// What Backend::Attention would be given.
struct Call {
  const float* q;
  int64_t q_stride;
  std::span<const SequenceChunk> chunks;
  KvView kv;
  AttentionParams params;
  float* out;
  int64_t out_stride;
};

template <bool kTensorCores>
void RunKernels(const Call& call) {
  const int group = call.params.num_heads / call.kv.layout.num_kv_heads;
  const AttentionPlan plan =
      PlanAttention(call.chunks, call.kv.layout, group, call.params.sliding_window, kTensorCores);
  std::vector<float> records(plan.record_floats, NAN);
  AttentionArgs args = {.q = call.q, .q_stride = call.q_stride, .out = call.out, .out_stride = call.out_stride,
                        .kv = call.kv, .layer = 1, .group = group, .scale = call.params.scale,
                        .sliding_window = call.params.sliding_window, .logit_softcap = call.params.logit_softcap,
                        .block_tables = plan.block_tables.data(), .max_pieces = plan.max_pieces,
                        .records = records.data(), .tensor_cores = kTensorCores};
  args.units = plan.prefill.data();
  args.num_units = static_cast<int>(plan.prefill.size());
  PrefillAttention(args, nullptr);
  args.units = plan.decode.data();
  args.num_units = static_cast<int>(plan.decode.size());
  DecodeAttention(args, nullptr);
}

constexpr auto RunOnEmulator = RunKernels<false>;
constexpr auto RunOnTensorCores = RunKernels<true>;

void RunOnCpu(const Call& call) {
  Reference()->Attention(1, call.q, call.q_stride, call.chunks, call.kv, call.params, call.out, call.out_stride);
}

// One sequence, its keys and values stored in blocks handed out in a shuffled order; what no position owns is NaN.
class Sequence {
 public:
  Sequence(const Case& c, uint32_t seed) : c_(c) {
    layout_ = {.dtype = c.dtype,
               .block_size = c.block_size,
               .num_layers = 2,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim};
    const int num_blocks = (c.length + c.block_size - 1) / c.block_size + 3;
    table_.resize(num_blocks);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(seed));
    pool_.assign(num_blocks * layout_.block_bytes(), std::byte{0xff});
    q_ = RandomFloats(size_t{1} * c.length * q_stride(), seed + 1);
    const int kv_stride = c.num_kv_heads * c.head_dim;
    std::vector<float> k = RandomFloats(size_t{1} * c.length * kv_stride, seed + 2);
    const std::vector<float> v = RandomFloats(size_t{1} * c.length * kv_stride, seed + 3);
    const SequenceChunk all{0, c.length, 0, table_};
    Reference()->WriteKv(1, k.data(), kv_stride, v.data(), kv_stride, {&all, 1}, view());
  }

  int q_stride() const { return c_.num_heads * c_.head_dim; }
  KvView view() { return {pool_.data(), layout_}; }
  std::vector<std::byte>& pool() { return pool_; }
  size_t KeyOffset(int position, bool is_value, int kv_head = 0) const {
    return table_[position / c_.block_size] * layout_.block_bytes() + layout_.offset(1, is_value, kv_head) +
           position % c_.block_size * layout_.element_bytes() * c_.head_dim;
  }
  // The key or value of a position, as stored (16 bits).
  std::vector<double> Stored(int position, bool is_value, int kv_head) const {
    std::vector<double> row(c_.head_dim);
    for (int d = 0; d < c_.head_dim; ++d) {
      uint16_t bits;
      std::memcpy(&bits, pool_.data() + KeyOffset(position, is_value, kv_head) + 2 * d, 2);
      row[d] = c_.dtype == DType::kBF16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
    }
    return row;
  }
  // What a query times scale becomes.
  double Query(int position, int head, int d) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    const float q = q_[size_t{1} * position * q_stride() + head * c_.head_dim + d] * scale;
    return c_.dtype == DType::kBF16 ? Bf16ToFloat(FloatToBf16(q)) : HalfToFloat(FloatToHalf(q));
  }

  // Positions from c.first on, in chunks of these rows over and over.
  std::vector<float> Compute(void (*run)(const Call&), const std::vector<int>& chunks) {
    std::vector<float> out(q_.size(), -9.0f);
    int begin = c_.first;
    for (size_t i = 0; begin < c_.length; ++i) {
      const int rows = std::min(chunks[i % chunks.size()], c_.length - begin);
      const SequenceChunk chunk{0, rows, begin, table_};
      run({q_.data() + begin * q_stride(), q_stride(), {&chunk, 1}, view(),
           {c_.num_heads, 1.0f / std::sqrt(static_cast<float>(c_.head_dim)), c_.window, c_.softcap},
           out.data() + begin * q_stride(), q_stride()});
      begin += rows;
    }
    return out;
  }

 private:
  const Case c_;
  KvLayout layout_;
  std::vector<int32_t> table_;
  std::vector<std::byte> pool_;
  std::vector<float> q_;
};

class AttentionTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionTest, PrefillAndDecodeHaveTheBitsOfTheCpuHoweverThePromptIsCut) {
  const Case& c = GetParam();
  Sequence sequence(c, 6);
  const std::vector<float> expected = sequence.Compute(RunOnCpu, {c.length});
  for (const std::vector<int>& chunks : {std::vector{c.length}, {1}, {7, 32, 1, 19}}) {
    const std::vector<float> out = sequence.Compute(RunOnEmulator, chunks);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::memcmp(&out[i], &expected[i], 4), 0)
          << "chunks of " << chunks[0] << ", position " << i / sequence.q_stride() << " element "
          << i % sequence.q_stride() << ": " << out[i] << ", expected " << expected[i];
    }
  }
}

TEST_P(AttentionTest, ThreadsMayRunInAnyOrder) {
  Case c = GetParam();
  c.first = std::max(c.first, c.length - 20);
  Sequence sequence(c, 7);
  const std::vector<float> expected = sequence.Compute(RunOnCpu, {c.length});
  ExpectSameBitsInAnyOrder(expected, [&] { return sequence.Compute(RunOnEmulator, {17, 1}); });
}

// A prompt in chunks, in one, and token by token.
TEST_P(AttentionTest, OnTensorCoresPrefillAndDecodeHaveTheSameBits) {
  Case c = GetParam();
  if (c.dtype == DType::kF32) c.dtype = DType::kBF16;
  if (c.head_dim > kTensorMaxHeadDim) GTEST_SKIP() << "in f32";
  Sequence sequence(c, 6);
  const std::vector<float> expected = sequence.Compute(RunOnTensorCores, {c.length});
  for (const std::vector<int>& chunks : {std::vector{1}, {7, 32, 1, 19}, {65}}) {
    const std::vector<float> out = sequence.Compute(RunOnTensorCores, chunks);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::memcmp(&out[i], &expected[i], 4), 0)
          << "chunks of " << chunks[0] << ", position " << i / sequence.q_stride() << " element "
          << i % sequence.q_stride() << ": " << out[i] << ", expected " << expected[i];
    }
  }
}

TEST_P(AttentionTest, OnTensorCoresThreadsMayRunInAnyOrder) {
  Case c = GetParam();
  if (c.dtype == DType::kF32) c.dtype = DType::kF16;
  if (c.head_dim > kTensorMaxHeadDim) GTEST_SKIP() << "in f32";
  c.first = std::max(c.first, c.length - 20);
  Sequence sequence(c, 7);
  const std::vector<float> expected = sequence.Compute(RunOnTensorCores, {17, 1});
  ExpectSameBitsInAnyOrder(expected, [&] { return sequence.Compute(RunOnTensorCores, {17, 1}); });
}

// In double, with queries, keys and values as they are rounded: only the weights' own rounding is left.
TEST_P(AttentionTest, OnTensorCoresIsNearTheDefinition) {
  Case c = GetParam();
  if (c.dtype == DType::kF32) c.dtype = DType::kBF16;
  if (c.head_dim > kTensorMaxHeadDim) GTEST_SKIP() << "in f32";
  c.first = std::max(c.first, c.length - 9);
  Sequence sequence(c, 8);
  const double unit = c.dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
  const std::vector<float> out = sequence.Compute(RunOnTensorCores, {c.length});
  for (int head = 0; head < c.num_heads; ++head) {
    const int kv_head = head / (c.num_heads / c.num_kv_heads);
    for (int position = c.first; position < c.length; ++position) {
      double total = 0;
      std::vector<double> sums(c.head_dim), sizes(c.head_dim);
      for (int key = c.window > 0 ? std::max(position - c.window + 1, 0) : 0; key <= position; ++key) {
        const std::vector<double> k = sequence.Stored(key, false, kv_head), v = sequence.Stored(key, true, kv_head);
        double score = 0;
        for (int d = 0; d < c.head_dim; ++d) score += sequence.Query(position, head, d) * k[d];
        if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
        const double weight = std::exp(score);
        total += weight;
        for (int d = 0; d < c.head_dim; ++d) {
          sums[d] += weight * v[d];
          sizes[d] += weight * std::abs(v[d]);
        }
      }
      for (int d = 0; d < c.head_dim; ++d) {
        ASSERT_NEAR(out[size_t{1} * position * sequence.q_stride() + head * c.head_dim + d], sums[d] / total,
                    unit * sizes[d] / total + 1e-5)
            << "position " << position << ", head " << head << ", dimension " << d;
      }
    }
  }
}

// What else is in the batch does not matter.
TEST(AttentionBatchTest, SequencesDoNotSeeOneAnother) {
  KvLayout layout{.dtype = DType::kF16, .block_size = 8, .num_layers = 2, .num_kv_heads = 2, .head_dim = 32};
  const int rows = 23 + 1 + 40 + 1;
  const std::vector<float> q = RandomFloats(rows * 192, 1), kv_values = RandomFloats(rows * 64, 2);
  const std::vector<int32_t> tables[] = {{3, 1, 9}, {0, 2}, {4, 5, 11, 7, 10, 6}, {8}};
  const SequenceChunk chunks[] = {
      {0, 23, 0, tables[0]}, {23, 1, 12, tables[1]}, {24, 40, 5, tables[2]}, {64, 1, 0, tables[3]}};
  std::vector<std::byte> pool(12 * layout.block_bytes(), std::byte{0x11});  // finite: context that came before
  const KvView view{pool.data(), layout};
  Reference()->WriteKv(1, kv_values.data(), 64, kv_values.data(), 64, chunks, view);
  std::vector<float> together(rows * 192), expected(rows * 192);
  RunOnEmulator({q.data(), 192, chunks, view, {6, 0.2f, 0, 0}, together.data(), 192});
  for (const SequenceChunk& chunk : chunks) RunOnCpu({q.data(), 192, {&chunk, 1}, view, {6, 0.2f, 0, 0}, expected.data(), 192});
  EXPECT_EQ(std::memcmp(together.data(), expected.data(), expected.size() * 4), 0);
}

// A NaN in a later position must not reach the rows before it (0 * NaN is NaN).
TEST(AttentionBatchTest, LaterPositionsCannotPoisonEarlierRows) {
  const Case c{"", 2, 1, 16, 16, 40};
  for (const bool is_value : {false, true}) {
    Sequence sequence(c, 9);
    std::memset(sequence.pool().data() + sequence.KeyOffset(20, is_value), 0xff, 2);
    for (const auto run : {RunOnEmulator, RunOnTensorCores}) {
      for (const int rows : {40, 1}) {
        const std::vector<float> out = sequence.Compute(run, {rows});
        for (int position = 0; position < 40; ++position) {
          EXPECT_EQ(std::isfinite(out[position * sequence.q_stride()]), position < 20) << position << " " << is_value;
        }
      }
    }
  }
}

TEST(AttentionPlanTest, CoversEachRowAndHeadOnce) {
  const std::vector<int32_t> table(100);
  const SequenceChunk chunks[] = {{0, 37, 3, table}, {37, 1, 1200, table}, {38, 2, 0, table}};
  for (const auto& [group, tensor_cores] :
       {std::pair{1, false}, {3, true}, {8, true}, {8, false}, {9, false}, {40, true}, {70, true}}) {
    const AttentionPlan plan =
        PlanAttention(chunks, {.block_size = 16, .num_kv_heads = 2, .head_dim = 8}, group, 0, tensor_cores);
    std::vector<int> seen(40 * group);
    const int prefill_queries = tensor_cores ? kTensorPrefillQueries : kPrefillQueries;
    for (const auto* units : {&plan.prefill, &plan.decode}) {
      for (const AttentionUnit& unit : *units) {
        EXPECT_LE(unit.num_rows * unit.num_heads, units == &plan.decode ? kDecodeQueries : prefill_queries);
        for (int r = 0; r < unit.num_rows; ++r) {
          for (int h = 0; h < unit.num_heads; ++h) ++seen[(unit.row_begin + r) * group + unit.head_begin + h];
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << group;
    EXPECT_EQ(plan.max_pieces, 3);
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
