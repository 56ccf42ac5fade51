// The rotary and KV-writing kernel on the emulator against the CPU's plain C++ kernels, bit for bit.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

struct Case {
  RopeStyle style;
  int rope_dim, head_dim, num_heads, num_kv_heads, block_size;
  DType dtype;
};
const Case kCases[] = {
    {RopeStyle::kHalves, 64, 64, 9, 3, 16, DType::kF16},
    {RopeStyle::kInterleaved, 20, 20, 2, 2, 5, DType::kF32},
    {RopeStyle::kHalves, 40, 136, 3, 1, 8, DType::kBF16},   // part of a head is rotated, and it has more pairs than threads
    {RopeStyle::kInterleaved, 256, 256, 4, 1, 16, DType::kF16},
};

// Two sequences: positions 3..9 of one and position 12 of the other.
class RopeKvTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kRows = 8, kPositions = 16, kBlocks = 9;

  RopeKvTest() {
    const Case& c = GetParam();
    layout_ = {.dtype = c.dtype,
               .block_size = c.block_size,
               .num_layers = 2,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim};
    q_stride_ = c.num_heads * c.head_dim + 3;
    kv_stride_ = c.num_kv_heads * c.head_dim + 1;
    q_ = RandomFloats(kRows * q_stride_, 1);
    k_ = RandomFloats(kRows * kv_stride_, 2);
    v_ = RandomFloats(kRows * kv_stride_, 3);
    v_[0] = 1e30f;  // beyond a half
    v_[1] = 1e-7f;  // a subnormal half
    cos_ = RandomFloats(kPositions * c.rope_dim / 2, 4);
    sin_ = RandomFloats(kPositions * c.rope_dim / 2, 5);
    tables_[0] = {7, 2, 5, 0};
    tables_[1] = {1, 8, 3, 6};
    for (int r = 0; r < kRows; ++r) {
      positions_.push_back(r < 7 ? 3 + r : 12);
      block_ids_.push_back(tables_[r < 7 ? 0 : 1][positions_[r] / c.block_size]);
    }
  }

  RopeTable rope() const { return {cos_.data(), sin_.data(), GetParam().rope_dim, GetParam().style}; }
  // q, then the pool's bytes as the kernel or the CPU leaves them.
  static std::vector<uint8_t> Joined(const std::vector<float>& q, const std::vector<std::byte>& pool) {
    std::vector<uint8_t> bytes(q.size() * 4 + pool.size());
    std::memcpy(bytes.data(), q.data(), q.size() * 4);
    std::memcpy(bytes.data() + q.size() * 4, pool.data(), pool.size());
    return bytes;
  }
  std::vector<std::byte> EmptyPool() const {
    return std::vector<std::byte>(kBlocks * layout_.block_bytes(), std::byte{0xee});
  }
  std::vector<uint8_t> Expected(bool rotate) const {
    std::vector<float> q = q_, k = k_;
    std::vector<std::byte> pool = EmptyPool();
    const auto cpu = Reference();
    if (rotate) {
      cpu->Rope(q.data(), q_stride_, kRows, GetParam().num_heads, layout_.head_dim, positions_, rope());
      cpu->Rope(k.data(), kv_stride_, kRows, layout_.num_kv_heads, layout_.head_dim, positions_, rope());
    }
    const SequenceChunk chunks[] = {{0, 7, 3, tables_[0]}, {7, 1, 12, tables_[1]}};
    cpu->WriteKv(1, k.data(), kv_stride_, v_.data(), kv_stride_, chunks, {pool.data(), layout_});
    return Joined(q, pool);
  }
  std::vector<uint8_t> Actual(bool rotate) const {
    std::vector<float> q = q_;
    std::vector<std::byte> pool = EmptyPool();
    RopeWriteKv({.q = q.data(), .q_stride = q_stride_, .k = k_.data(), .k_stride = kv_stride_, .v = v_.data(),
                 .v_stride = kv_stride_, .m = kRows, .num_heads = GetParam().num_heads, .head_dim = layout_.head_dim,
                 .positions = positions_.data(), .block_ids = block_ids_.data(), .cos = rotate ? cos_.data() : nullptr, .sin = sin_.data(), .rope_dim = GetParam().rope_dim,
                 .interleaved = GetParam().style == RopeStyle::kInterleaved, .rope_rows = rope_rows_,
                 .kv = {pool.data(), layout_}, .layer = 1},
                nullptr);
    return Joined(q, pool);
  }

  KvLayout layout_;
  int q_stride_, kv_stride_;
  std::vector<float> q_, k_, v_, cos_, sin_;
  std::vector<int32_t> tables_[2], positions_, block_ids_;
  const int32_t* rope_rows_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Shapes, RopeKvTest, testing::ValuesIn(kCases));

TEST_P(RopeKvTest, RotatesAndWritesWhatTheCpuDoesAndNothingElse) {
  ExpectSameBitsInAnyOrder(Expected(true), [&] { return Actual(true); });
}

// The model's tables have a row for each row of the batch, not for each position.
TEST_P(RopeKvTest, AnglesCanBeThoseOfTheRow) {
  const Case& c = GetParam();
  std::vector<float> cos, sin;
  std::vector<int32_t> rows;
  for (int r = 0; r < kRows; ++r) {
    rows.push_back(kRows - 1 - r);
    const int position = positions_[kRows - 1 - r];
    for (int i = 0; i < c.rope_dim / 2; ++i) {
      cos.push_back(cos_[position * c.rope_dim / 2 + i]);
      sin.push_back(sin_[position * c.rope_dim / 2 + i]);
    }
  }
  const std::vector<uint8_t> expected = Expected(true);
  std::swap(cos, cos_);
  std::swap(sin, sin_);
  rope_rows_ = rows.data();
  ExpectSameBitsInAnyOrder(expected, [&] { return Actual(true); });
}

TEST_P(RopeKvTest, WithoutPositionsARowsAnglesAreItsOwn) {
  const Case& c = GetParam();
  std::vector<int32_t> ascending(kRows);
  std::iota(ascending.begin(), ascending.end(), 0);
  const auto rotated = [&](const int32_t* positions) {
    std::vector<float> q = q_;
    RopeWriteKv({.q = q.data(), .q_stride = q_stride_, .m = kRows, .num_heads = c.num_heads, .head_dim = layout_.head_dim,
                 .positions = positions, .cos = cos_.data(), .sin = sin_.data(), .rope_dim = c.rope_dim,
                 .interleaved = c.style == RopeStyle::kInterleaved},
                nullptr);
    return q;
  };
  ExpectSameBitsInAnyOrder(rotated(ascending.data()), [&] { return rotated(nullptr); });
}

TEST_P(RopeKvTest, WithoutATableNothingIsRotated) {
  ExpectSameBitsInAnyOrder(Expected(false), [&] { return Actual(false); });
}

}  // namespace
}  // namespace baton::kernels::cuda
