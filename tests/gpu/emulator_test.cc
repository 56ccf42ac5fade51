// The emulator itself: what it must find, it finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/tensor.h"

namespace baton::cuda_emulator {
namespace {

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kShuffled};

class EmulatorTest : public testing::Test {
 protected:
  void TearDown() override { SetSchedule(Order::kAscending); }
};

TEST_F(EmulatorTest, RunsEachThreadOfEachBlockOnce) {
  for (const Order order : kOrders) {
    SetSchedule(order, 3);
    std::vector<int> runs(3 * 2 * 2 * 5 * 2 * 3);
    RunGrid(dim3(3, 2, 2), dim3(5, 2, 3), 0, [&] {
      const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      ++runs[block * 30 + thread];
    });
    EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
  }
}

TEST_F(EmulatorTest, BarrierSeparatesWritesFromReads) {
  for (const Order order : kOrders) {
    SetSchedule(order, 5);
    std::vector<int> out(100);
    RunGrid(dim3(1), dim3(100), 100 * sizeof(int), [&] {
      int* const shared = static_cast<int*>(DynamicShared());
      shared[threadIdx.x] = static_cast<int>(threadIdx.x) * 3;
      __syncthreads();
      out[threadIdx.x] = shared[99 - threadIdx.x];
    });
    for (int i = 0; i < 100; ++i) EXPECT_EQ(out[i], (99 - i) * 3);
  }
}

// A kernel without the barrier that it needs.
TEST_F(EmulatorTest, AMissingBarrierGivesOtherResultsInAnotherOrder) {
  std::set<std::vector<float>> results;
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    SetSchedule(order);
    std::vector<float> out(64);
    RunGrid(dim3(1), dim3(64), 64 * sizeof(float), [&] {
      float* const shared = static_cast<float*>(DynamicShared());
      shared[threadIdx.x] = 1;
      out[threadIdx.x] = shared[(threadIdx.x + 1) % 64] == 1.0f ? 1 : 0;
    });
    results.insert(out);
  }
  EXPECT_EQ(results.size(), 2u);
}

// A warp writes what another reads some warp operations later, without a barrier: as long as both make as many, it is there in
// time, so warps must get ahead of one another.
TEST_F(EmulatorTest, WarpsGetAheadOfOneAnother) {
  int too_early = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SetSchedule(Order::kShuffled, seed);
    RunGrid(dim3(1), dim3(64), sizeof(float), [&] {
      float* const shared = static_cast<float*>(DynamicShared());
      for (int i = 0; i < 20; ++i) __syncwarp();
      if (threadIdx.x == 0) *shared = 1;
      for (int i = 0; i < 5; ++i) __syncwarp();
      if (threadIdx.x == 32) too_early += std::isnan(*shared);
    });
  }
  EXPECT_GT(too_early, 0);
  EXPECT_LT(too_early, 20);
}

TEST_F(EmulatorTest, SharedMemoryStartsAsNanInEachBlock) {
  int nans = 0;
  RunGrid(dim3(3), dim3(1), 8 * sizeof(float), [&] {
    float* const shared = static_cast<float*>(DynamicShared());
    for (int i = 0; i < 8; ++i) {
      nans += std::isnan(shared[i]);
      shared[i] = 0;
    }
  });
  EXPECT_EQ(nans, 24);
}

TEST_F(EmulatorTest, ShufflesTakeTheNamedLane) {
  for (const Order order : kOrders) {
    SetSchedule(order, 9);
    std::vector<int> from(64), crossed(64), down(64);
    RunGrid(dim3(1), dim3(64), 0, [&] {
      const int t = static_cast<int>(threadIdx.x);
      from[t] = __shfl_sync(0xffffffff, t * 10, 5);
      crossed[t] = __shfl_xor_sync(0xffffffff, t, 3);
      down[t] = __shfl_down_sync(0xffffffff, t, 30);
    });
    for (int t = 0; t < 64; ++t) {
      EXPECT_EQ(from[t], (t / 32 * 32 + 5) * 10);
      EXPECT_EQ(crossed[t], t ^ 3);
      EXPECT_EQ(down[t], t % 32 + 30 < 32 ? t + 30 : t);
    }
  }
}

TEST_F(EmulatorTest, HalvesOfAWarpCanShuffleOnTheirOwn) {
  std::vector<int> out(32);
  RunGrid(dim3(1), dim3(32), 0, [&] {
    const int t = static_cast<int>(threadIdx.x);
    int value = t;
    if (t < 16) {
      for (int i = 0; i < 3; ++i) value = __shfl_xor_sync(0xffff, value, 1);
    } else {
      value = __shfl_xor_sync(0xffff0000, value, 2);
    }
    out[t] = value;
  });
  for (int t = 0; t < 32; ++t) EXPECT_EQ(out[t], t < 16 ? t ^ 1 : t ^ 2);
}

// What a lane holds, told with numbers as in PTX's figures: bfloat16 has integers up to 256.
uint32_t Bf16s(int low, int high) {
  const auto bits = [](int value) { return __float_as_uint(static_cast<float>(value)) >> 16; };
  return bits(low) | bits(high) << 16;
}

TEST_F(EmulatorTest, MatricesAreLoadedAsFragments) {
  for (const Order order : kOrders) {
    SetSchedule(order, 11);
    std::vector<uint32_t> out(32 * 4);
    RunGrid(dim3(1), dim3(32), 16 * 16 * 2, [&] {
      auto* const shared = static_cast<uint16_t*>(DynamicShared());  // [16][16], element = 16 * row + col
      const int lane = static_cast<int>(threadIdx.x);
      for (int i = 0; i < 8; ++i) shared[lane * 8 + i] = static_cast<uint16_t>(lane * 8 + i);
      __syncwarp();
      uint32_t registers[4];
      LoadMatrices(shared + lane % 16 * 16 + lane / 16 * 8, registers);
      for (int i = 0; i < 4; ++i) out[lane * 4 + i] = registers[i];
    });
    const auto pair = [](int row, int col) {
      return static_cast<uint32_t>((16 * row + col) | (16 * row + col + 1) << 16);
    };
    // Lane 0, lane 6 (group 1, third in it), lane 31 (group 7, fourth).
    EXPECT_EQ(std::vector<uint32_t>(out.begin(), out.begin() + 4),
              (std::vector<uint32_t>{pair(0, 0), pair(8, 0), pair(0, 8), pair(8, 8)}));
    EXPECT_EQ(std::vector<uint32_t>(out.begin() + 24, out.begin() + 28),
              (std::vector<uint32_t>{pair(1, 4), pair(9, 4), pair(1, 12), pair(9, 12)}));
    EXPECT_EQ(std::vector<uint32_t>(out.end() - 4, out.end()),
              (std::vector<uint32_t>{pair(7, 6), pair(15, 6), pair(7, 14), pair(15, 14)}));
  }
}

// One element of a and one of b not zero: the sum is in one register of one lane.
TEST_F(EmulatorTest, ProductsAreWherePtxSays) {
  struct Case {
    int a_lane, a_register, a_high, b_lane, b_register, b_high, d_lane, d_register;
  };
  for (const Case& c : {
           Case{0, 0, 0, 0, 0, 0, 0, 0},      // a[0][0] * b[0][0]
           Case{6, 0, 1, 14, 0, 1, 5, 1},     // a[1][5] * b[5][3] -> d[1][3]
           Case{6, 1, 1, 14, 0, 1, 5, 3},     // a[9][5] * b[5][3] -> d[9][3]
           Case{31, 2, 0, 31, 1, 0, 31, 1},   // a[7][14] * b[14][7] -> d[7][7]
           Case{31, 3, 1, 3, 1, 1, 28, 2},    // a[15][15] * b[15][0] -> d[15][0]
           Case{8, 3, 0, 20, 1, 0, 10, 3},    // a[10][8] * b[8][5] -> d[10][5]
       }) {
    std::vector<float> d(32 * 4);
    RunGrid(dim3(1), dim3(32), 0, [&] {
      const int lane = static_cast<int>(threadIdx.x);
      uint32_t a[4] = {}, b[2] = {};
      if (lane == c.a_lane) a[c.a_register] = c.a_high ? Bf16s(0, 3) : Bf16s(3, 0);
      if (lane == c.b_lane) b[c.b_register] = c.b_high ? Bf16s(0, 5) : Bf16s(5, 0);
      float sums[4] = {0, 0, 0, 0};
      MultiplyAdd(sums, a, b[0], b[1]);
      MultiplyAdd(sums, a, b[0], b[1]);
      for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
    });
    std::vector<float> expected(32 * 4);
    expected[c.d_lane * 4 + c.d_register] = 30;
    EXPECT_EQ(d, expected) << c.d_lane;
  }
}

TEST_F(EmulatorTest, CopiesArriveWhenTheirGroupIsWaitedFor) {
  alignas(16) static const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  bool first_too_early = false, second_too_early = false;
  std::vector<float> first(4), second(4), zeros(4);
  RunGrid(dim3(1), dim3(1), 48, [&] {
    float* const shared = static_cast<float*>(DynamicShared());
    for (int i = 0; i < 12; ++i) shared[i] = -1;
    CopyAsync16(shared, from);
    CommitCopies();
    CopyAsync16(shared + 4, from + 4);
    CopyAsync16(shared + 8, nullptr);
    CommitCopies();
    first_too_early = !std::isnan(shared[0]);  // nor is what was there before to be relied on
    WaitForCopies(1);
    std::copy(shared, shared + 4, first.begin());
    second_too_early = !std::isnan(shared[4]);
    WaitForCopies(0);
    std::copy(shared + 4, shared + 8, second.begin());
    std::copy(shared + 8, shared + 12, zeros.begin());
  });
  EXPECT_FALSE(first_too_early);
  EXPECT_FALSE(second_too_early);
  EXPECT_EQ(first, std::vector<float>(from, from + 4));
  EXPECT_EQ(second, std::vector<float>(from + 4, from + 8));
  EXPECT_EQ(zeros, std::vector<float>(4));
}

// A warpgroup multiplies 64 x 16 of a, one element of which is not zero, by b, which lies as `put` says: put(row, input) is
// the offset of an element. Each of b's is its own number.
template <typename Fn>
std::vector<float> MultiplyRow(int n, int a_row, int a_col, uint64_t descriptor_bits, const Fn& put) {
  constexpr int kBytes = 16 << 10;
  alignas(16) static uint16_t b[kBytes / 2];
  std::fill(std::begin(b), std::end(b), 0x7fc0);  // NaN: what is not of the matrix must not matter
  for (int row = 0; row < n; ++row) {
    for (int k = 0; k < 16; ++k) {
      b[put(row, k) / 2] = static_cast<uint16_t>(__float_as_uint(static_cast<float>((row * 16 + k) % 251)) >> 16);
    }
  }
  std::vector<float> d(64 * n);
  RunGrid(dim3(1), dim3(128), kBytes, [&] {
    auto* const shared = static_cast<std::byte*>(DynamicShared());
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    for (int i = thread; i < kBytes / 16; i += 128) CopyAsync16(shared + i * 16, b + i * 8);
    CommitCopies();
    WaitForCopies(0);
    ProxyFence();
    __syncthreads();
    // a's fragment, as mma.m16n8k16's of the warp's rows.
    uint32_t a[4] = {};
    if (a_row / 16 == warp && lane == a_row % 8 * 4 + a_col % 8 / 2) {
      a[a_row % 16 / 8 + a_col / 8 * 2] = a_col % 2 == 0 ? Bf16s(2, 0) : Bf16s(0, 2);
    }
    float sums[128];
    std::fill(sums, sums + n / 2, 1.0f);
    WgmmaFence();
    Wgmma(sums, n, a, descriptor_bits | (SharedAddress(shared) >> 4));
    WgmmaCommit();
    WgmmaWait(0);
    for (int i = 0; i < n / 2; ++i) {
      const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
      d[row * n + col] = sums[i];
    }
  });
  return d;
}

TEST_F(EmulatorTest, WarpgroupProductsAreWherePtxSays) {
  for (const Order order : kOrders) {
    SetSchedule(order, 13);
    for (const auto& [n, a_row, a_col] : {std::tuple{8, 0, 0}, {24, 9, 5}, {64, 23, 14}, {192, 63, 15}}) {
      // 8 rows of 16 bytes; halves of 8 inputs 128 bytes apart, octets of rows 256.
      const std::vector<float> d = MultiplyRow(
          n, a_row, a_col, uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32,
          [](int row, int k) { return row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2; });
      for (int row = 0; row < 64; ++row) {
        for (int col = 0; col < n; ++col) {
          const float product = row == a_row ? 2.0f * static_cast<float>((col * 16 + a_col) % 251) : 0;
          ASSERT_EQ(d[row * n + col], 1 + product) << n << " " << row << " " << col;
        }
      }
    }
  }
}

// Rows of 128, 64 or 32 bytes in octets; each row's pieces of 16 bytes are at their place xor the row, in the repeating
// patterns of PTX's figures: 8 rows of 8 pieces; of 64 bytes, two rows to a pattern's line; of 32, four.
TEST_F(EmulatorTest, MatrixDescriptorsSwizzle) {
  for (const auto& [mode, row_bytes] : {std::pair{1, 128}, {2, 64}, {3, 32}}) {
    for (const int first_input : {0, 16}) {  // of a row: the start address goes on within the pattern
      if (first_input * 2 + 32 > row_bytes) continue;
      const int bytes = row_bytes, first = first_input;
      const std::vector<float> d = MultiplyRow(
          32, 40, 11, uint64_t(mode) << 62 | uint64_t(8 * bytes >> 4) << 32 | uint64_t(first * 2 >> 4), [&](int row, int k) {
            const int piece = (first + k) / 8, line = row % 8 * bytes / 128;
            return row / 8 * 8 * bytes + row % 8 * bytes + (piece ^ line % (bytes / 16)) * 16 + k % 8 * 2;
          });
      for (int col = 0; col < 32; ++col) {
        EXPECT_EQ(d[40 * 32 + col], 1 + 2.0f * static_cast<float>((col * 16 + 11) % 251)) << mode << " " << col;
      }
    }
  }
}

// What a kernel may do wrong around a product of 64 x 16 ones by 16 x 8 ones.
enum class Fault { kNone, kNoProxyFence, kNoBarrier, kNoRegisterFence, kReadsEarly, kChangesA, kReusesMemory };

std::vector<float> ProductsWith(Fault fault) {
  alignas(16) static const std::vector<uint16_t> ones(128, 0x3f80);
  std::vector<float> out(128 * 4);
  RunGrid(dim3(1), dim3(128), 256, [&] {
    auto* const shared = static_cast<std::byte*>(DynamicShared());
    const int thread = static_cast<int>(threadIdx.x);
    const auto copy = [&] {
      if (thread % 8 == 0) CopyAsync16(shared + thread / 8 * 16, ones.data() + thread);
      CommitCopies();
    };
    // One warp is late.
    for (int i = 0; thread / 32 == 2 && i < 4; ++i) __syncwarp();
    copy();
    WaitForCopies(0);
    if (fault != Fault::kNoProxyFence) ProxyFence();
    if (fault != Fault::kNoBarrier) __syncthreads();
    uint32_t a[4] = {Bf16s(1, 1), Bf16s(1, 1), Bf16s(1, 1), Bf16s(1, 1)};
    float d[4] = {}, early[4];
    WgmmaFence();
    const uint64_t b = SharedAddress(shared) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
    Wgmma(d, 8, a, b);
    WgmmaCommit();
    if (fault != Fault::kNoRegisterFence) WgmmaFence();
    Wgmma(d, 8, a, b);  // goes on from the first
    WgmmaCommit();
    if (fault == Fault::kChangesA) a[2] = Bf16s(3, 3);
    if (fault == Fault::kReusesMemory) copy();
    WgmmaWait(1);
    std::copy(d, d + 4, early);
    WgmmaWait(0);
    WaitForCopies(0);
    for (int i = 0; i < 4; ++i) out[thread * 4 + i] = fault == Fault::kReadsEarly ? early[i] : d[i];
  });
  return out;
}

TEST_F(EmulatorTest, WhatIsMissingAroundAWarpgroupProductGivesOtherBits) {
  const std::vector<float> right(128 * 4, 32.0f);
  for (const Fault fault : {Fault::kNone, Fault::kNoProxyFence, Fault::kNoBarrier, Fault::kNoRegisterFence, Fault::kReadsEarly,
                            Fault::kChangesA, Fault::kReusesMemory}) {
    int wrong = 0;
    for (const Order order : kOrders) {
      SetSchedule(order, 15);
      wrong += ProductsWith(fault) != right;
    }
    if (fault == Fault::kNone) {
      EXPECT_EQ(wrong, 0);
    } else {
      EXPECT_GT(wrong, 0) << static_cast<int>(fault);
    }
  }
}

// A warp goes on alone until it waits for the others.
TEST_F(EmulatorTest, AWarpgroupsBarrierIsItsOwn) {
  for (const Order order : kOrders) {
    SetSchedule(order, 17);
    std::vector<int> shared(256), out(256);
    RunGrid(dim3(1), dim3(256), 0, [&] {
      const unsigned t = threadIdx.x;
      for (int round = 1; round <= (t < 128 ? 5 : 2); ++round) {
        shared[t] = round;
        SyncWarpgroup();
        out[t] = shared[t / 128 * 128 + (t + 1) % 128];
        SyncWarpgroup();
      }
    });
    for (int t = 0; t < 256; ++t) EXPECT_EQ(out[t], t < 128 ? 5 : 2);
  }
}

using EmulatorDeathTest = EmulatorTest;

TEST_F(EmulatorDeathTest, WhatNoWarpgroupCanDoEndsTheProcess) {
  const auto product = [](uint64_t descriptor) {
    uint32_t a[4] = {};
    float d[4] = {};
    WgmmaFence();
    Wgmma(d, 8, a, descriptor);
    WgmmaCommit();
    WgmmaWait(0);
  };
  constexpr uint64_t kStrides = uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
  const auto start = [] { return uint64_t{SharedAddress(DynamicShared()) >> 4}; };
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 256, [&] { product(kStrides | (start() + 1)); }), "outside of shared memory");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(96), 256, [&] { product(kStrides | start()); }), "no whole ones");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 512, [&] { product(kStrides | (start() + threadIdx.x / 96)); }),
               "warps of a warpgroup multiply different");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 512, [&] { product(kStrides | (start() + threadIdx.x % 2)); }),
               "lanes of a warp multiply different");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 256,
                       [&] {
                         if (threadIdx.x < 96) product(kStrides | start());
                       }),
               "fewer products");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 256,
                       [&] {
                         uint32_t a[4] = {};
                         float d[4] = {};
                         Wgmma(d, 8, a, kStrides | start());
                       }),
               "products that it has not waited for");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 256, [&] { product(kStrides | start() | uint64_t{1} << 49); }), "base offset");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(128), 0,
                       [] {
                         if (threadIdx.x != 5) SyncWarpgroup();
                       }),
               "wait at different barriers");
}

TEST_F(EmulatorDeathTest, MisusedCopiesAndMatricesEndTheProcess) {
  alignas(16) static const float from[8] = {};
  EXPECT_DEATH(RunGrid(dim3(1), dim3(1), 32, [] { CopyAsync16(DynamicShared(), from + 1); }), "not aligned");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(1), 32,
                       [] {
                         CopyAsync16(DynamicShared(), from);
                         CommitCopies();
                       }),
               "has not waited for");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(32), 1024,
                       [] {
                         uint32_t out[4];
                         LoadMatrices(static_cast<char*>(DynamicShared()) + 8 * threadIdx.x, out);
                       }),
               "not aligned");
  // A warp of which some lanes load and others multiply.
  EXPECT_DEATH(RunGrid(dim3(1), dim3(32), 1024,
                       [] {
                         uint32_t a[4] = {};
                         float d[4] = {};
                         if (threadIdx.x == 3) {
                           LoadMatrices(DynamicShared(), a);
                         } else {
                           MultiplyAdd(d, a, 0, 0);
                         }
                       }),
               "wait at different barriers");
}

TEST_F(EmulatorDeathTest, ThreadsAtDifferentBarriersEndTheProcess) {
  EXPECT_DEATH(RunGrid(dim3(1), dim3(32), 0,
                       [] {
                         if (threadIdx.x == 0) {
                           __syncthreads();
                         } else {
                           __syncwarp();
                         }
                       }),
               "wait at different barriers");
}

TEST_F(EmulatorDeathTest, AnEndedLaneInAShuffleEndsTheProcess) {
  EXPECT_DEATH(RunGrid(dim3(1), dim3(32), 0,
                       [] {
                         if (threadIdx.x == 7) return;
                         __shfl_xor_sync(0xffffffff, 1, 1);
                       }),
               "a lane that has ended");
}

TEST_F(EmulatorDeathTest, LaunchesThatNoDeviceTakesEndTheProcess) {
  EXPECT_DEATH(RunGrid(dim3(1), dim3(1025), 0, [] {}), "1 to 1024 threads");
  EXPECT_DEATH(RunGrid(dim3(1, 70000), dim3(1), 0, [] {}), "a grid has");
  EXPECT_DEATH(RunGrid(dim3(1), dim3(1), 300 << 10, [] {}), "more shared memory");
}

}  // namespace
}  // namespace baton::cuda_emulator
