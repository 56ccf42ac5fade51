// The emulator itself: what it must find, it finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
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

using EmulatorDeathTest = EmulatorTest;

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
