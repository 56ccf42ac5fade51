#include "model/exact_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton::model {
namespace {

TEST(ExactMathTest, SinCosMatchesLibmUpToTheLongestContext) {
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double angle = i < 100000 ? i * 0.013 : std::ldexp(1 + i * 1e-5, (i % 27) + 1) / 2;
    double s = 0, c = 0;
    SinCos(angle, &s, &c);
    worst = std::max({worst, std::fabs(s - std::sin(angle)), std::fabs(c - std::cos(angle))});
  }
  EXPECT_LE(worst, 1e-15);
  double s = 1, c = 0;
  SinCos(0, &s, &c);
  EXPECT_EQ(s, 0);
  EXPECT_EQ(c, 1);
}

TEST(ExactMathTest, RootMatchesPow) {
  for (int n = 1; n <= 512; ++n) {
    for (double x : {1.0, 1.5, 1e4, 5e5, 1e6, 1e12}) {
      EXPECT_NEAR(Root(x, n) / std::pow(x, 1.0 / n), 1, 1e-14) << x << " " << n;
    }
  }
}

TEST(ExactMathTest, TanhMatchesLibm) {
  for (double x = 1e-9; x < 400; x *= 1.01) {
    EXPECT_NEAR(Tanh(x) / std::tanh(x), 1, 1e-12) << x;
    EXPECT_EQ(Tanh(-x), -Tanh(x));
  }
  EXPECT_EQ(Tanh(0), 0);
  EXPECT_EQ(Tanh(std::numeric_limits<double>::infinity()), 1);
  EXPECT_TRUE(std::isnan(Tanh(std::nan(""))));
}

}  // namespace
}  // namespace baton::model
