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
