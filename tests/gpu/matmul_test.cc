// Products on the emulator: against their definition in plain C++, the CPU's kernels where the order is the same, and
// themselves with other numbers of rows; all bit for bit.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pack_weights.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

constexpr DType kDeviceFormats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0};

struct Product {
  TestTensor tensor;
  PackedWeights packed;
  std::vector<float> x, bias;
  int64_t x_stride;

  Product(DType dtype, int64_t rows, int64_t cols, int max_rows, uint32_t seed)
      : tensor(RandomTensor(dtype, rows, cols, seed)),
        packed(PackForDevice(tensor.host())),
        x(RandomFloats(max_rows * (cols + 3), seed + 1)),
        bias(RandomFloats(rows, seed + 2)),
        x_stride(cols + 3) {}

  DeviceMatrix matrix() const {
    return {packed.dtype, tensor.rows, tensor.cols, packed.codes.data(), packed.scales.data()};
  }
  // [m, rows] with a gap after each row.
  std::vector<float> Compute(int m, bool with_bias) const {
    const int64_t stride = tensor.rows + 2;
    std::vector<float> y(m * stride, 7.0f);
    MatMul({.x = x.data(), .x_stride = x_stride, .m = m, .weight = matrix(), .bias = with_bias ? bias.data() : nullptr,
            .y = y.data(), .y_stride = stride},
           nullptr);
    return y;
  }
  // By the definition in matmul.cu.
  std::vector<float> Expected(int m, bool with_bias) const {
    const int64_t stride = tensor.rows + 2;
    std::vector<float> y(m * stride, 7.0f);
    for (int64_t o = 0; o < tensor.rows; ++o) {
      const std::vector<float> w = tensor.Row(o);
      for (int r = 0; r < m; ++r) {
        float total = 0;
        for (int64_t k = 0; k < tensor.cols; k += kInputPiece) {
          float acc = 0;
          for (int64_t i = k; i < std::min<int64_t>(k + kInputPiece, tensor.cols); ++i) {
            acc = std::fma(w[i], x[r * x_stride + i], acc);
          }
          total = k == 0 ? acc : total + acc;
        }
        y[r * stride + o] = with_bias ? total + bias[o] : total;
      }
    }
    return y;
  }
};

// Odd numbers of everything that the format allows; rows below, at and above the switch between the kernels.
TEST(MatMulTest, IsItsDefinition) {
  for (const DType dtype : kDeviceFormats) {
    const bool blocks = BlockElements(dtype) > 1;
    for (const auto& [rows, cols, m] : {std::tuple{1, 1, 1}, {33, 67, 3}, {70, 1051, 7}, {31, 515, 9}, {65, 97, 66}}) {
      const int64_t whole = blocks ? (cols + 31) / 32 * 32 : cols;
      SCOPED_TRACE(testing::Message() << Name(dtype) << " " << rows << " x " << whole << ", " << m << " rows");
      const Product product(dtype, rows, whole, m, 11);
      ExpectSameBitsInAnyOrder(product.Expected(m, m % 2 == 1), [&] { return product.Compute(m, m % 2 == 1); });
    }
  }
}

// One piece of inputs: the CPU's order.
TEST(MatMulTest, UpToOnePieceHasTheBitsOfTheCpu) {
  for (const DType dtype : kAllDTypes) {
    SCOPED_TRACE(testing::Message() << Name(dtype));
    const Product product(dtype, 45, 512, 12, 21);
    const auto cpu = Reference();
    const auto weight = cpu->PackWeights(product.tensor.host()).value();
    for (const int m : {1, 12}) {
      std::vector<float> expected(m * 47, 7.0f);
      const MatMulOutput output = {weight.get(), product.bias.data(), expected.data(), 47};
      cpu->MatMul(product.x.data(), product.x_stride, m, {&output, 1});
      EXPECT_EQ(product.Compute(m, true), expected) << m;
    }
  }
}

TEST(MatMulTest, ARowsBitsDoNotDependOnTheNumberOfRows) {
  for (const DType dtype : kDeviceFormats) {
    SCOPED_TRACE(testing::Message() << Name(dtype));
    constexpr int kMost = 70;
    const Product product(dtype, 40, 1120, kMost, 31);
    const std::vector<float> all = product.Compute(kMost, true);
    for (const int m : {1, 2, 3, 4, 5, 8, 9, 17, 64, 65}) {
      const std::vector<float> some = product.Compute(m, true);
      EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * 4), 0) << m << " rows";
    }
  }
}

TEST(MatMulTest, RowsOfAWeightAreThoseOfTheFileScaled) {
  for (const DType dtype : kDeviceFormats) {
    SCOPED_TRACE(testing::Message() << Name(dtype));
    const int64_t cols = dtype == DType::kF32 ? 77 : 96;
    const Product product(dtype, 45, cols, 1, 61);
    const std::vector<int32_t> rows = {44, 0, 31, 32, 31};
    std::vector<float> expected;
    for (const int32_t row : rows) {
      for (const float value : product.tensor.Row(row)) expected.push_back(value * 1.3f);
    }
    ExpectSameBitsInAnyOrder(expected, [&] {
      std::vector<float> out(rows.size() * cols, NAN);
      ReadRows(product.matrix(), rows.data(), static_cast<int>(rows.size()), 1.3f, out.data(), nullptr);
      return out;
    });
    std::vector<float> one(cols, NAN);
    ReadRow(product.matrix(), 44, one.data(), nullptr);
    EXPECT_EQ(one, product.tensor.Row(44));
  }
}

// What lies beyond the last input or row must not matter, not even as NaN.
TEST(MatMulTest, ReadsNothingOutsideOfItsRows) {
  Product product(DType::kBF16, 35, 77, 10, 41);
  const std::vector<float> before = product.Compute(10, false);
  for (int r = 0; r < 10; ++r) {
    for (int64_t k = 77; k < product.x_stride; ++k) product.x[r * product.x_stride + k] = NAN;
  }
  EXPECT_EQ(product.Compute(10, false), before);
  const std::vector<float> one = product.Compute(1, false);
  EXPECT_EQ(std::memcmp(one.data(), before.data(), one.size() * 4), 0);
}

}  // namespace
}  // namespace baton::kernels::cuda
