#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace baton::kernels::cpu {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnceAndSeesTheResults) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int round = 0; round < 300; ++round) {
      const int n = round * 7 % 60;
      std::vector<int> hits(n, 0);  // plain: the pool itself must order the accesses
      pool.Run(n, [&](int task, int thread) {
        ASSERT_TRUE(thread >= 0 && thread < threads);
        ++hits[task];
      });
      EXPECT_EQ(hits, std::vector<int>(n, 1));
    }
  }
}

TEST(ThreadPoolTest, SleepingWorkersWakeForTheNextJob) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long past the spinning
    std::atomic<int> sum{0};
    pool.Run(100, [&](int task, int) { sum += task; });
    EXPECT_EQ(sum, 4950);
  }
}

// A thread that is stuck in its first task holds up that task only: the others take its share.
TEST(ThreadPoolTest, OthersTakeOverTheShareOfALateThread) {
  ThreadPool pool(2);
  std::atomic<int> others_done{0};
  std::atomic<int> stuck_thread{-1};
  std::vector<int> done_by(64, -1);
  pool.Run(64, [&](int task, int thread) {
    done_by[task] = thread;
    int nobody = -1;
    if (stuck_thread.compare_exchange_strong(nobody, thread)) {
      while (others_done != 63) std::this_thread::yield();  // ends only if the other thread does all the rest
    } else {
      ++others_done;
    }
  });
  int by_stuck = 0;
  for (const int thread : done_by) by_stuck += thread == stuck_thread;
  EXPECT_EQ(by_stuck, 1);
}

// Tasks of the second stage see what those of the first wrote that they wait for, whoever does which, after jobs of one stage
// and of two, from whose end other threads may still be on their way.
TEST(ThreadPoolTest, SecondStageWaitsForItsOwnPartOfTheFirst) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 500; ++round) {
      const int parts = 1 + round % 4, each = 1 + round % 5, num_second = round % 17;
      std::vector<Latch> latches(parts);
      for (Latch& latch : latches) latch.Reset(each);
      std::vector<int> first(parts * each, 0), second(num_second, 0);
      pool.RunStages(
          parts * each,
          [&](int task, int) {
            if (task % 7 == 3) std::this_thread::yield();
            first[task] = task + 1;
            latches[task / each].Arrive();
          },
          num_second,
          [&](int task, int) {
            const int part = task % parts;
            latches[part].Wait();
            for (int i = 0; i < each; ++i) second[task] += first[part * each + i];
          });
      for (int task = 0; task < num_second; ++task) {
        int want = 0;
        for (int i = 0; i < each; ++i) want += task % parts * each + i + 1;
        ASSERT_EQ(second[task], want) << threads << " threads, round " << round;
      }
      if (round % 3 == 0) {
        std::vector<int> hits(9, 0);
        pool.Run(9, [&](int task, int) { ++hits[task]; });
        ASSERT_EQ(hits, std::vector<int>(9, 1));
      }
    }
  }
}

// What needs nothing of a late task goes on without it: no barrier lies between the stages.
TEST(ThreadPoolTest, SecondStageDoesNotWaitForTheRest) {
  ThreadPool pool(2);
  Latch needed;
  needed.Reset(3);
  std::atomic<int> second_done{0};
  pool.RunStages(
      4,
      [&](int task, int) {
        if (task == 0) {
          while (second_done != 8) std::this_thread::yield();  // ends only if the other thread goes on
        } else {
          needed.Arrive();
        }
      },
      8,
      [&](int, int) {
        needed.Wait();
        ++second_done;
      });
  EXPECT_EQ(second_done, 8);
  EXPECT_EQ(pool.num_barriers(), 1u);
}

TEST(ThreadPoolTest, LargestJob) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  pool.Run(ThreadPool::kMaxTasks, [&](int task, int) { sum += task; });
  EXPECT_EQ(sum, int64_t{ThreadPool::kMaxTasks} * (ThreadPool::kMaxTasks - 1) / 2);
}

TEST(ThreadPoolTest, StopsWithoutEverHavingWorked) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace baton::kernels::cpu
