// The emulator itself: what it must find, it finds.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"

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

using EmulatorDeathTest = EmulatorTest;

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
