#include "common/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace baton {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that the authors of the paper distribute with Random123 (philox4x32, 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformUsesEveryPartOfItsName) {
  std::set<double> draws;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (uint32_t choice = 0; choice < 3; ++choice) {
      for (uint32_t position = 0; position < 3; ++position) {
        for (uint32_t draw = 0; draw < 3; ++draw) draws.insert(PhiloxUniform(seed, choice, position, draw));
      }
    }
  }
  EXPECT_EQ(draws.size(), 81u);
}

TEST(PhiloxTest, UniformIsInRangeAndFlat) {
  double sum = 0;
  int buckets[10] = {};
  constexpr int kDraws = 100000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double u = PhiloxUniform(42, 0, i, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    ++buckets[static_cast<int>(u * 10)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  for (int count : buckets) EXPECT_NEAR(count, kDraws / 10, 500);
}

}  // namespace
}  // namespace baton
