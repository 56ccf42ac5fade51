#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <vector>

namespace baton::kernels {
namespace {

// Random blocks with the values that the Python gguf package gives them; see tests/reference/dequantize_golden.py.
TEST(DTypeTest, DequantizesAsTheReferenceToTheBit) {
  std::ifstream file("tests/reference/dequantize_golden.txt");
  ASSERT_TRUE(file.is_open());
  std::string name, raw_hex, value_list;
  int formats = 0;
  while (file >> name >> raw_hex >> value_list) {
    const std::optional<DType> dtype = FromName(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    std::vector<uint8_t> raw(1);  // one byte off: sources need no alignment
    for (size_t i = 0; i < raw_hex.size(); i += 2) {
      raw.push_back(static_cast<uint8_t>(std::stoul(raw_hex.substr(i, 2), nullptr, 16)));
    }
    std::vector<uint32_t> expected;
    std::stringstream values(value_list);
    for (std::string value; std::getline(values, value, ',');) {
      expected.push_back(static_cast<uint32_t>(std::stoul(value, nullptr, 16)));
    }
    ASSERT_EQ((raw.size() - 1) / BlockBytes(*dtype) * BlockElements(*dtype), expected.size()) << name;
    std::vector<float> actual(expected.size());
    DequantizeRow(*dtype, raw.data() + 1, actual.data(), static_cast<int64_t>(actual.size()));
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), expected[i]) << name << " element " << i;
    }
    ++formats;
  }
  EXPECT_EQ(formats, 10);
}

TEST(DTypeTest, NamesAndNumbersRoundTrip) {
  const std::map<uint32_t, const char*> types = {{0, "f32"},   {1, "f16"},   {2, "q4_0"}, {3, "q4_1"},
                                                 {6, "q5_0"},  {7, "q5_1"},  {8, "q8_0"}, {12, "q4_k"},
                                                 {13, "q5_k"}, {14, "q6_k"}, {30, "bf16"}};
  for (uint32_t number = 0; number < 64; ++number) {
    const std::optional<DType> dtype = FromGgmlType(number);
    ASSERT_EQ(dtype.has_value(), types.contains(number)) << number;
    if (!dtype.has_value()) continue;
    EXPECT_TRUE(Name(*dtype) == types.at(number)) << number;
    EXPECT_EQ(FromName(Name(*dtype)), dtype);
  }
  EXPECT_FALSE(FromGgmlType(std::numeric_limits<uint32_t>::max()).has_value());
  EXPECT_FALSE(FromName("q4").has_value());
}

TEST(DTypeTest, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    const uint16_t back = FloatToHalf(f);
    if ((h & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(f));
      EXPECT_GT(back & 0x7fff, 0x7c00);
    } else {
      ASSERT_EQ(back, h);
    }
  }
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0xfbff), -65504.0f);
}

// Rounding checked against its definition: the nearest of the two neighbours, ties to the even one.
TEST(DTypeTest, HalfRoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const double low = HalfToFloat(static_cast<uint16_t>(h)), high = HalfToFloat(static_cast<uint16_t>(h + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact
    ASSERT_EQ(FloatToHalf(middle), h % 2 == 0 ? h : h + 1);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), h);
    ASSERT_EQ(FloatToHalf(-std::nextafter(middle, 1e9f)), (h + 1) | 0x8000);
  }
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DTypeTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t b = 0; b <= 0x7f80; ++b) {
    ASSERT_EQ(FloatToBf16(Bf16ToFloat(static_cast<uint16_t>(b))), b);
  }
}

}  // namespace
}  // namespace baton::kernels
