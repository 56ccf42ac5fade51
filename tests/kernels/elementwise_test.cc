#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels {
namespace {

const cpu::KernelTable& TableOf(Isa isa) {
  return isa == Isa::kAmx          ? cpu::AmxKernels()
         : isa == Isa::kAvx512Bf16 ? cpu::Avx512Bf16Kernels() : isa == Isa::kAvx512 ? cpu::Avx512Kernels() : isa == Isa::kAvx2 ? cpu::Avx2Kernels() : cpu::ScalarKernels();
}

TEST(ExpTest, IsAccurateAndTheSameEverywhere) {
  std::vector<float> x;
  for (float value = -86.4f; value < 88.7f; value += 0.0037f) x.push_back(value);
  for (const float value : {0.0f, -0.0f, 1e-30f, -1e-8f, 88.71f, -86.49f}) x.push_back(value);
  std::vector<float> expected(x.size());
  cpu::ScalarKernels().exp(x.data(), expected.data(), static_cast<int>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    ASSERT_NEAR(expected[i] / exact, 1.0, 2e-7) << x[i];
  }
  for (const Isa isa : AvailableIsas()) {
    std::vector<float> y(x.size());
    TableOf(isa).exp(x.data(), y.data(), static_cast<int>(x.size()));
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << TableOf(isa).name;

    const float inf = std::numeric_limits<float>::infinity();
    const float special[] = {inf, -inf, 1000, -1000, std::nanf(""), 0, -86.6f};
    float result[7];
    TableOf(isa).exp(special, result, 7);
    EXPECT_EQ(result[0], inf);
    EXPECT_EQ(result[1], 0);
    EXPECT_EQ(result[2], inf);
    EXPECT_EQ(result[3], 0);
    EXPECT_TRUE(std::isnan(result[4]));
    EXPECT_EQ(result[5], 1);
    EXPECT_EQ(result[6], 0);
  }
}

TEST(GatedActivationTest, AgreesWithTheDefinition) {
  for (const int dim : {1, 16, 33, 1536}) {
    const int m = 5, stride = dim + 2;
    const std::vector<float> gate = RandomFloats(m * stride, 1, 4.0f), up = RandomFloats(m * stride, 2);
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      std::vector<float> scalar;
      for (const Isa isa : AvailableIsas()) {
        std::vector<float> y = gate;
        MakeBackend(isa, NumericsClass::kInt, 2)->GatedActivation(act, y.data(), stride, up.data(), stride, m, dim);
        if (scalar.empty()) scalar = y;
        ASSERT_EQ(std::memcmp(y.data(), scalar.data(), y.size() * 4), 0) << static_cast<int>(isa);
      }
      for (int i = 0; i < m * stride; ++i) {
        if (i % stride >= dim) {
          EXPECT_EQ(scalar[i], gate[i]);
          continue;
        }
        const double x = gate[i];
        const double value = act == Activation::kSilu
                                 ? x / (1 + std::exp(-x))
                                 : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        ASSERT_NEAR(scalar[i], value * up[i], 2e-6 * std::fabs(x * up[i]) + 1e-30) << x;
      }
    }
  }
}

TEST(RmsNormTest, AgreesWithTheDefinitionInPlaceToo) {
  for (const int dim : {7, 64, 576, 1000}) {
    for (const int m : {1, 40}) {
      const int stride = dim + 1;
      const std::vector<float> x = RandomFloats(m * stride, 3, 2.0f), weight = RandomFloats(dim, 4);
      std::vector<float> scalar;
      for (const Isa isa : AvailableIsas()) {
        std::vector<float> y = x;
        MakeBackend(isa, NumericsClass::kInt, 2)
            ->RmsNorm(y.data(), stride, m, dim, weight.data(), 1e-5f, y.data(), stride);
        if (scalar.empty()) scalar = y;
        ASSERT_EQ(std::memcmp(y.data(), scalar.data(), y.size() * 4), 0) << static_cast<int>(isa);
        std::vector<float> row(dim);
        MakeBackend(isa)->RmsNorm(x.data() + (m - 1) * stride, stride, 1, dim, weight.data(), 1e-5f, row.data(), dim);
        ASSERT_EQ(std::memcmp(row.data(), scalar.data() + (m - 1) * stride, dim * 4), 0) << "depends on m";
      }
      for (int r = 0; r < m; ++r) {
        double squares = 0;
        for (int i = 0; i < dim; ++i) squares += double{x[r * stride + i]} * x[r * stride + i];
        const double scale = 1 / std::sqrt(squares / dim + 1e-5);
        for (int i = 0; i < dim; ++i) {
          const double value = x[r * stride + i] * scale * weight[i];
          ASSERT_NEAR(scalar[r * stride + i], value, 1e-6 * std::fabs(value));
        }
        EXPECT_EQ(scalar[r * stride + dim], x[r * stride + dim]);
      }
    }
  }
}

TEST(RopeTest, RotatesPairsOfBothStyles) {
  const int m = 9, heads = 3, head_dim = 24, rope_dim = 20, stride = heads * head_dim;
  const std::vector<float> x = RandomFloats(m * stride, 5);
  std::vector<int32_t> positions;
  for (int r = 0; r < m; ++r) positions.push_back(r * r % 40);
  std::vector<float> cos, sin;
  for (int p = 0; p < 40; ++p) {
    for (int i = 0; i < rope_dim / 2; ++i) {
      cos.push_back(static_cast<float>(std::cos(p * std::pow(100.0, -2.0 * i / rope_dim))));
      sin.push_back(static_cast<float>(std::sin(p * std::pow(100.0, -2.0 * i / rope_dim))));
    }
  }
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalves}) {
    const RopeTable table{cos.data(), sin.data(), rope_dim, style};
    std::vector<float> scalar;
    for (const Isa isa : AvailableIsas()) {
      std::vector<float> y = x;
      MakeBackend(isa, NumericsClass::kInt, 2)->Rope(y.data(), stride, m, heads, head_dim, positions, table);
      if (scalar.empty()) scalar = y;
      ASSERT_EQ(std::memcmp(y.data(), scalar.data(), y.size() * 4), 0) << static_cast<int>(isa);
    }
    for (int r = 0; r < m; ++r) {
      for (int i = 0; i < stride; ++i) {
        const int d = i % head_dim, base = r * stride + i - d;
        double expected = x[r * stride + i];
        if (d < rope_dim) {
          const bool halves = style == RopeStyle::kHalves;
          const int pair = halves ? d % (rope_dim / 2) : d / 2;
          const double a = x[base + (halves ? pair : 2 * pair)];
          const double b = x[base + (halves ? pair + rope_dim / 2 : 2 * pair + 1)];
          const double c = cos[positions[r] * rope_dim / 2 + pair], s = sin[positions[r] * rope_dim / 2 + pair];
          expected = (halves ? d < rope_dim / 2 : d % 2 == 0) ? a * c - b * s : a * s + b * c;
        }
        ASSERT_NEAR(scalar[r * stride + i], expected, 1e-6);
      }
    }
  }
}

TEST(AddTest, AddsRowsWithStrides) {
  const int m = 50, dim = 300;
  const std::vector<float> x = RandomFloats(m * 310, 6), y = RandomFloats(m * 305, 7);
  for (const Isa isa : AvailableIsas()) {
    std::vector<float> z = x;
    MakeBackend(isa, NumericsClass::kInt, 2)->Add(z.data(), 310, y.data(), 305, m, dim);
    for (int r = 0; r < m; ++r) {
      for (int i = 0; i < 310; ++i)
        ASSERT_EQ(z[r * 310 + i], i < dim ? x[r * 310 + i] + y[r * 305 + i] : x[r * 310 + i]);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
