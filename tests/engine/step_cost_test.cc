#include "engine/step_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace baton::engine {
namespace {

absl::Duration Step(double fixed, double row, double position, int64_t rows, int64_t positions) {
  return absl::Microseconds(fixed + row * static_cast<double>(rows) + position * static_cast<double>(positions));
}

TEST(StepCostTest, LearnsTheLineThatStepsFollow) {
  StepCostModel model;
  EXPECT_EQ(model.Fit().samples, 0u);
  std::mt19937_64 random(1);
  for (int i = 0; i < 400; ++i) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 512), positions = rows * (1 + random() % 1000);
    const double noise = 0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000;
    model.Learn(rows, positions, noise * Step(800, 90, 0.5, rows, positions));
  }
  const StepCost cost = model.Fit();
  EXPECT_EQ(cost.samples, 398u) << "all but the first two, which are cold";
  EXPECT_NEAR(cost.per_row_us, 90, 9);
  EXPECT_NEAR(cost.per_position_us, 0.5, 0.05);
  EXPECT_NEAR(cost.fixed_us, 800, 300);
}

TEST(StepCostTest, NoPartIsEverNegative) {
  StepCostModel model;
  // Longer batches that take less: nothing a sum of costs could say.
  for (int i = 0; i < 200; ++i) model.Learn(1 + i % 10, 5 * (1 + i % 10), absl::Microseconds(1000 - 90 * (i % 10)));
  const StepCost cost = model.Fit();
  EXPECT_GE(cost.fixed_us, 0);
  EXPECT_GE(cost.per_row_us, 0);
  EXPECT_GE(cost.per_position_us, 0);
  EXPECT_GT(cost.fixed_us + cost.per_row_us, 0);
}

TEST(StepCostTest, EqualStepsArePredictedAsTheyWere) {
  StepCostModel model;
  for (int i = 0; i < 50; ++i) model.Learn(1, 100, absl::Microseconds(2000));
  const StepCost cost = model.Fit();
  EXPECT_NEAR(cost.fixed_us + cost.per_row_us + 100 * cost.per_position_us, 2000, 20);
}

// Small steps alone do not say what a large one takes: the guess must not be so high that none is ever tried.
TEST(StepCostTest, SmallStepsDoNotMakeLargeOnesLookEndless) {
  StepCostModel model;
  for (int i = 0; i < 50; ++i) model.Learn(8, 36, absl::Microseconds(9000));
  const StepCost cost = model.Fit();
  EXPECT_LT(cost.fixed_us + 512 * cost.per_row_us, 30000);
}

// One step in twenty takes twice its forecast: the bound must hold for those too, and come down again when they stop.
TEST(StepCostTest, TheExcessIsThatOfTheLongSteps) {
  StepCostExcess excess;
  for (int i = 0; i < 2000; ++i) excess.Learn(1000, absl::Microseconds(i % 20 == 0 ? 2000 : 1000));
  int longer = 0;
  for (int i = 0; i < 2000; ++i) {
    const double us = i % 20 == 0 ? 2000 : 1000;
    longer += us > 1000 * excess.factor();
    excess.Learn(1000, absl::Microseconds(us));
  }
  EXPECT_LE(longer, 60) << "of 2,000, a hundred of them long";
  for (int i = 0; i < 2000; ++i) excess.Learn(1000, absl::Microseconds(1000));
  EXPECT_LT(excess.factor(), 1.2);
}

TEST(StepCostTest, FollowsAMachineThatBecomesSlower) {
  StepCostModel model;
  for (int i = 0; i < 1000; ++i) model.Learn(1 + i % 100, 0, Step(100, 10, 0, 1 + i % 100, 0));
  for (int i = 0; i < 1000; ++i) model.Learn(1 + i % 100, 0, Step(100, 30, 0, 1 + i % 100, 0));
  EXPECT_NEAR(model.Fit().per_row_us, 30, 1);
}

TEST(StepCostTest, ASimulatedClockTeachesNothing) {
  StepCostModel model;
  model.Learn(10, 10, absl::ZeroDuration());
  EXPECT_EQ(model.Fit().samples, 0u);
}

}  // namespace
}  // namespace baton::engine
