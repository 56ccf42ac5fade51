#include "common/stall_watch.h"

#include <gtest/gtest.h>

#include <atomic>

namespace baton {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250), kMost = absl::Milliseconds(500);

TEST(StallDetectorTest, OnlyOneLongBusyTurnIsAStall) {
  StallDetector detector;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(detector.Observe({7, false, {}}, kTick, kMost), absl::ZeroDuration()) << "idle";
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(detector.Observe({8 + i, true, {}}, kTick, kMost), absl::ZeroDuration());
  EXPECT_EQ(detector.Observe({107, true, {}}, kTick, kMost), kTick);
  EXPECT_EQ(detector.Observe({107, true, {}}, kTick, kMost), 2 * kTick);
  EXPECT_EQ(detector.Observe({107, false, {}}, kTick, kMost), absl::ZeroDuration());
  EXPECT_EQ(detector.Observe({107, true, {}}, kTick, kMost), absl::ZeroDuration()) << "busy again: since when is not known";
  EXPECT_EQ(detector.Observe({107, true, {}}, kTick, kMost), kTick);
}

TEST(StallDetectorTest, TheTimeInWhichTheWatchStoodStillItselfDoesNotCount) {
  StallDetector detector;
  detector.Observe({1, true, {}}, kTick, kMost);
  EXPECT_EQ(detector.Observe({1, true, {}}, absl::Hours(1), kMost), kMost);
  EXPECT_EQ(detector.Observe({1, true, {}}, -absl::Hours(1), kMost), kMost) << "a clock that was set back";
}

TEST(StallDetectorTest, WhatIsTooLongDependsOnWhatStepsTook) {
  const absl::Duration limit = absl::Minutes(5);
  EXPECT_EQ(StallLimit(limit, absl::ZeroDuration()), limit) << "the first step of a large model on a slow machine";
  EXPECT_EQ(StallLimit(limit, absl::Milliseconds(2)), absl::Seconds(10));
  EXPECT_EQ(StallLimit(limit, absl::Milliseconds(50)), absl::Seconds(50));
  EXPECT_EQ(StallLimit(limit, absl::Seconds(1)), limit);
  EXPECT_EQ(StallLimit(absl::Seconds(1), absl::Milliseconds(2)), absl::Seconds(1)) << "as it was set";
}

TEST(StallWatchTest, TellsOnceAndEndsAtOnceWhenNothingIsWrong) {
  Mutex mu;
  CondVar cv;
  int told = 0;
  StallWatch watch(absl::Milliseconds(40), [] { return Activity{3, true, {}}; }, [&](absl::Duration stalled) {
    EXPECT_GE(stalled, absl::Milliseconds(40));
    MutexLock lock(&mu);
    ++told;
    cv.Signal();
  });
  std::atomic<uint64_t> turns{0};
  StallWatch moving(absl::Milliseconds(40), [&] { return Activity{++turns, true, {}}; }, [](absl::Duration) { FAIL(); });
  MutexLock lock(&mu);
  while (told == 0) cv.Wait(&mu);
  EXPECT_EQ(told, 1);
}

TEST(EndProcessWithinTest, ALockThatIsNeverGivenBackDoesNotKeepTheProcess) {
  Mutex mu;
  EXPECT_EXIT(
      {
        EndProcessWithin(1);
        MutexLock held(&mu);
        CondVar never;
        for (;;) never.Wait(&mu);
      },
      ::testing::ExitedWithCode(1), "engine_stall_ms");
}

}  // namespace
}  // namespace baton
