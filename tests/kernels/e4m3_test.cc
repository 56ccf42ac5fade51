#include "kernels/e4m3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace baton::kernels {
namespace {

// By the format's definition, in double.
double Defined(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}
bool IsNan(int code) { return (code & 0x7f) == 0x7f; }

// The nearest value by search; of two as near, the one whose mantissa is even.
int Nearest(float value) {
  int best = std::signbit(value) ? 0x80 : 0;
  for (int magnitude = 0; magnitude < 0x7f; ++magnitude) {
    const int code = magnitude | (std::signbit(value) ? 0x80 : 0);
    const double now = std::abs(Defined(code) - double{value}), before = std::abs(Defined(best) - double{value});
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(E4m3Test, EveryCodeIsItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if (IsNan(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, Defined(code)) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), kE4m3Max);
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x08), 0x1p-6f);
}

TEST(E4m3Test, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(FloatToE4m3(E4m3ToFloat(static_cast<uint8_t>(code))), code);
  }
}

// Between each two neighbours: the tie, and the floats beside it.
TEST(E4m3Test, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = static_cast<float>(Defined(code)), high = static_cast<float>(Defined(code + 1));
    const float tie = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(FloatToE4m3(s * tie), even | sign) << code;
      EXPECT_EQ(FloatToE4m3(s * std::nextafter(tie, 0.0f)), code | sign) << code;
      EXPECT_EQ(FloatToE4m3(s * std::nextafter(tie, 1e9f)), (code + 1) | sign) << code;
      EXPECT_EQ(FloatToE4m3(s * std::nextafter(low, 1e9f)), code | sign) << code;
      EXPECT_EQ(FloatToE4m3(s * std::nextafter(high, 0.0f)), (code + 1) | sign) << code;
    }
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(rng), static_cast<int>(rng() % 24) - 13);
    ASSERT_EQ(FloatToE4m3(value), Nearest(value)) << value;
  }
}

TEST(E4m3Test, SaturatesAndKeepsNanAndZerosSign) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float beyond : {448.0f, std::nextafter(448.0f, 1e9f), 464.0f, 480.0f, 1e9f, 3.4e38f, kInfinity}) {
    EXPECT_EQ(FloatToE4m3(beyond), 0x7e) << beyond;
    EXPECT_EQ(FloatToE4m3(-beyond), 0xfe) << beyond;
  }
  EXPECT_EQ(FloatToE4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
  EXPECT_EQ(FloatToE4m3(0.0f), 0);
  EXPECT_EQ(FloatToE4m3(-0.0f), 0x80);
  for (const float tiny : {std::numeric_limits<float>::denorm_min(), 0x1p-126f, 0x1p-10f}) {  // the last is a tie
    EXPECT_EQ(FloatToE4m3(tiny), 0) << tiny;
    EXPECT_EQ(FloatToE4m3(-tiny), 0x80) << tiny;
  }
}

}  // namespace
}  // namespace baton::kernels
