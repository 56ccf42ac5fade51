#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/backend.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels {
namespace {

struct Case {
  const char* name;
  int num_heads, num_kv_heads, head_dim, block_size, length;
  DType dtype = DType::kF16;
  int window = 0;
  float softcap = 0;
  int first = 0;  // the position from which on attention is computed; the keys and values before it are only stored
};

// One sequence's queries, keys and values, and a pool whose blocks are handed out in a shuffled order. Slots that no
// position owns hold NaN: a kernel that reads one shows it.
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
    k_ = RandomFloats(size_t{1} * c.length * kv_stride(), seed + 2);
    v_ = RandomFloats(size_t{1} * c.length * kv_stride(), seed + 3);
  }

  int q_stride() const { return c_.num_heads * c_.head_dim; }
  int kv_stride() const { return c_.num_kv_heads * c_.head_dim; }
  KvView view() { return {pool_.data(), layout_}; }
  std::vector<std::byte>& pool() { return pool_; }
  std::vector<float>& k() { return k_; }
  std::vector<float>& v() { return v_; }

  // Computes positions [begin, begin + rows) as one chunk, writing their KV first, into `out` at their position.
  void Compute(Backend& backend, int begin, int rows, std::vector<float>* out) {
    const SequenceChunk chunk{0, rows, begin, table_};
    backend.WriteKv(1, k_.data() + begin * kv_stride(), kv_stride(), v_.data() + begin * kv_stride(), kv_stride(),
                    {&chunk, 1}, view());
    AttentionParams params{c_.num_heads, Scale(), c_.window, c_.softcap};
    backend.Attention(1, q_.data() + begin * q_stride(), q_stride(), {&chunk, 1}, view(), params,
                      out->data() + begin * q_stride(), q_stride());
  }
  std::vector<float> ComputeInChunks(Backend& backend, const std::vector<int>& chunks) {
    std::vector<float> out(q_.size(), -9.0f);
    if (c_.first > 0) {
      const SequenceChunk before{0, c_.first, 0, table_};
      backend.WriteKv(1, k_.data(), kv_stride(), v_.data(), kv_stride(), {&before, 1}, view());
    }
    int begin = c_.first;
    for (size_t i = 0; begin < c_.length; ++i) {
      const int rows = std::min(chunks[i % chunks.size()], c_.length - begin);
      Compute(backend, begin, rows, &out);
      begin += rows;
    }
    return out;
  }

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(c_.head_dim)); }
  double Stored(float value) const {
    return c_.dtype == DType::kF16    ? HalfToFloat(FloatToHalf(value))
           : c_.dtype == DType::kBF16 ? Bf16ToFloat(FloatToBf16(value))
                                      : value;
  }
  // By the definition, in double.
  std::vector<double> Expected(int position, int head) const {
    const int kv_head = head / (c_.num_heads / c_.num_kv_heads);
    const int first = c_.window > 0 ? std::max(0, position - c_.window + 1) : 0;
    std::vector<double> scores;
    for (int p = first; p <= position; ++p) {
      double score = 0;
      for (int d = 0; d < c_.head_dim; ++d) {
        score += q_[position * q_stride() + head * c_.head_dim + d] *
                 Stored(k_[p * kv_stride() + kv_head * c_.head_dim + d]);
      }
      score *= Scale();
      scores.push_back(c_.softcap > 0 ? c_.softcap * std::tanh(score / c_.softcap) : score);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> out(c_.head_dim);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp(scores[i] - max);
      sum += weight;
      for (int d = 0; d < c_.head_dim; ++d) {
        out[d] += weight * Stored(v_[(first + static_cast<int>(i)) * kv_stride() + kv_head * c_.head_dim + d]);
      }
    }
    for (double& value : out) value /= sum;
    return out;
  }

 private:
  const Case c_;
  KvLayout layout_;
  std::vector<int32_t> table_;
  std::vector<std::byte> pool_;
  std::vector<float> q_, k_, v_;
};

const Case kCases[] = {
    {"smollm", 9, 3, 64, 16, 83},
    {"gemma", 3, 1, 256, 16, 67, DType::kF16, 33},
    {"softcap", 4, 2, 64, 8, 70, DType::kBF16, 0, 30.0f},
    {"plain", 2, 2, 128, 32, 67, DType::kF32},
    {"odd", 6, 2, 40, 5, 75, DType::kF16, 17},
    {"wide_group", 71, 1, 16, 16, 21},
    {"pieces", 2, 1, 16, 16, 1034, DType::kF16, 0, 0, 1000},
    {"piece_window", 2, 1, 16, 16, 520, DType::kF16, 300, 0, 490},
    {"one_block", 4, 4, 80, 64, 50, DType::kBF16},
};

class AttentionTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionTest, ScalarAgreesWithTheDefinition) {
  const Case& c = GetParam();
  Sequence sequence(c, 5);
  const auto backend = MakeBackend(Isa::kScalar);
  const std::vector<float> out = sequence.ComputeInChunks(*backend, {c.length});
  for (int position = c.length - 1; position >= c.first; position -= 1 + (c.length - c.first) / 20) {
    for (int head = 0; head < c.num_heads; ++head) {
      const std::vector<double> expected = sequence.Expected(position, head);
      for (int d = 0; d < c.head_dim; ++d) {
        ASSERT_NEAR(out[position * sequence.q_stride() + head * c.head_dim + d], expected[d], 2e-5)
            << "position " << position << " head " << head << " dim " << d;
      }
    }
  }
}

// How a sequence is computed: by so many threads, in chunks of these rows over and over.
struct Schedule {
  int threads;
  std::vector<int> chunks;
};

// Few, because the scalar kernels under the address sanitizer take milliseconds a row.
std::vector<Schedule> Schedules(const Case& c, Isa isa) {
  if (isa == Isa::kScalar) return {{3, {1}}, {1, {7, 32, 1, 19}}};
  return {{1, {c.length}}, {3, {1}}, {1, {7, 32, 1, 19}}, {3, {33, 2}}};
}

TEST_P(AttentionTest, BitsDependNeitherOnChunksNorPhaseNorInstructionSetNorThreads) {
  const Case& c = GetParam();
  const std::vector<float> expected = Sequence(c, 6).ComputeInChunks(*MakeBackend(Isa::kScalar), {c.length});
  for (const Isa isa : AvailableIsas()) {
    for (const Schedule& schedule : Schedules(c, isa)) {
      const auto backend = MakeBackend(isa, NumericsClass::kInt, schedule.threads);
      const std::vector<float> out = Sequence(c, 6).ComputeInChunks(*backend, schedule.chunks);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0)
          << backend->name() << " x" << schedule.threads << " chunks of " << schedule.chunks[0];
    }
  }
}

// What else is in the batch does not matter: prefill chunks and decode rows of several sequences in one call.
TEST(AttentionBatchTest, SequencesDoNotSeeOneAnother) {
  KvLayout layout{.dtype = DType::kF16, .block_size = 8, .num_layers = 1, .num_kv_heads = 2, .head_dim = 32};
  const int rows = 23 + 1 + 40 + 1;
  const std::vector<float> q = RandomFloats(rows * 192, 1), k = RandomFloats(rows * 64, 2),
                           v = RandomFloats(rows * 64, 3);
  const std::vector<int32_t> tables[] = {{3, 1, 9}, {0, 2}, {4, 5, 11, 7, 10, 6}, {8}};
  const SequenceChunk chunks[] = {
      {0, 23, 0, tables[0]}, {23, 1, 12, tables[1]}, {24, 40, 5, tables[2]}, {64, 1, 0, tables[3]}};
  const AttentionParams params{6, 0.2f, 0, 0};
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa, NumericsClass::kInt, 2);
    std::vector<std::byte> pool(12 * layout.block_bytes(), std::byte{0x11});  // finite: context that came before
    const KvView view{pool.data(), layout};
    backend->WriteKv(0, k.data(), 64, v.data(), 64, chunks, view);
    std::vector<float> together(rows * 192), alone(rows * 192);
    backend->Attention(0, q.data(), 192, chunks, view, params, together.data(), 192);
    for (const SequenceChunk& chunk : chunks) {
      backend->Attention(0, q.data(), 192, {&chunk, 1}, view, params, alone.data(), 192);
    }
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * 4), 0) << backend->name();
  }
}

// A NaN in a later position must not reach the rows before it (0 * NaN is NaN), or prefill and decode would differ.
TEST(AttentionBatchTest, LaterPositionsCannotPoisonEarlierRows) {
  const Case c{"", 2, 1, 16, 16, 40};
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa);
    for (const bool in_value : {false, true}) {
      Sequence sequence(c, 9);
      (in_value ? sequence.v() : sequence.k())[20 * sequence.kv_stride()] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> out = sequence.ComputeInChunks(*backend, {40});
      for (int position = 0; position < 40; ++position) {
        EXPECT_EQ(std::isfinite(out[position * sequence.q_stride()]), position < 20)
            << backend->name() << " " << position << (in_value ? " value" : " key");
      }
    }
  }
}

TEST(WriteKvTest, StoresWhatTheLayoutSaysAndNothingElse) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const KvLayout layout{.dtype = dtype, .block_size = 4, .num_layers = 3, .num_kv_heads = 2, .head_dim = 20};
    std::vector<float> k = RandomFloats(6 * 40, 1), v = RandomFloats(6 * 40, 2);
    k[0] = 1e30f;  // beyond a half
    k[1] = 1e-7f;  // a subnormal half
    const std::vector<int32_t> table = {5, 0, 3};
    const SequenceChunk chunk{0, 6, 3, table};
    for (const Isa isa : AvailableIsas()) {
      std::vector<std::byte> pool(6 * layout.block_bytes(), std::byte{0xee}), expected = pool;
      MakeBackend(isa)->WriteKv(1, k.data(), 40, v.data(), 40, {&chunk, 1}, {pool.data(), layout});
      for (int r = 0; r < 6; ++r) {
        for (int head = 0; head < 2; ++head) {
          for (int d = 0; d < 20; ++d) {
            for (const bool is_value : {false, true}) {
              const float value = (is_value ? v : k)[r * 40 + head * 20 + d];
              const int position = 3 + r;
              std::byte* p = expected.data() + table[position / 4] * layout.block_bytes() +
                             layout.offset(1, is_value, head) + (position % 4 * 20 + d) * layout.element_bytes();
              const uint16_t h = dtype == DType::kF16 ? FloatToHalf(value) : FloatToBf16(value);
              std::memcpy(p, dtype == DType::kF32 ? static_cast<const void*>(&value) : &h, layout.element_bytes());
            }
          }
        }
      }
      EXPECT_EQ(pool, expected) << Name(dtype) << " isa " << static_cast<int>(isa);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
