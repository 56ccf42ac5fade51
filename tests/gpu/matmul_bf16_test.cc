// Products on tensor cores, on the emulator: bit for bit their definition with the emulator's own order in a step, near
// the exact value as any device must be, and themselves for any number of rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pack_weights.h"
#include "kernels/e4m3.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

// Of the file and on the device.
struct Format {
  DType dtype;
  WeightStorage storage = WeightStorage::kOwnBits;
  std::string name() const { return std::string(Name(dtype)) + (storage == WeightStorage::kFp8 ? " as fp8" : ""); }
};
const Format kFormats[] = {{DType::kF32},  {DType::kF16},  {DType::kBF16},
                           {DType::kQ8_0}, {DType::kQ4_0}, {DType::kBF16, WeightStorage::kFp8}};

float Rounded(float value) { return Bf16ToFloat(FloatToBf16(value)); }

struct Bytes16 {
  alignas(16) uint8_t bytes[16];
};

struct Product {
  TestTensor tensor;
  PackedWeights packed;
  std::vector<float> x, bias;
  int64_t x_stride;

  Product(const Format& format, int64_t rows, int64_t cols, int max_rows, uint32_t seed)
      : tensor(RandomTensor(format.dtype, rows, cols, seed)),
        packed(PackForDevice(tensor.host(), format.storage)),
        x(RandomFloats(max_rows * (cols + 3), seed + 1)),
        bias(RandomFloats(rows, seed + 2)),
        x_stride(cols + 3) {}

  int64_t y_stride() const { return tensor.rows + 2; }
  // [m, rows] with a gap after each row, of x's rows from `first` on.
  std::vector<float> Compute(bool wgmma, int m, bool with_bias, int first = 0) const {
    std::vector<float> y(m * y_stride(), 7.0f);
    const size_t rounded_bytes = RoundedInputsBytes(m, tensor.cols);
    EXPECT_EQ(rounded_bytes % 16, 0u);
    std::vector<Bytes16> rounded(rounded_bytes / 16);
    RoundInputs(x.data() + first * x_stride, x_stride, m, tensor.cols, rounded.data(), nullptr);
    Bf16MatMul({.rounded = rounded.data(),
                .m = m,
                .weight = {packed.dtype, tensor.rows, tensor.cols, packed.codes.data(), packed.scales.data()},
                .bias = with_bias ? bias.data() : nullptr,
                .y = y.data(),
                .y_stride = y_stride(),
                .wgmma = wgmma},
               nullptr);
    return y;
  }
  // What is multiplied, and what a row's sum is multiplied by then.
  std::vector<float> Weights(int64_t output) const {
    if (packed.dtype != kE4m3) {
      std::vector<float> w = tensor.Row(output);
      for (float& value : w) value = Rounded(value);
      return w;
    }
    std::vector<float> w(tensor.cols);
    UnpackE4m3Row(packed, tensor.cols, output, w.data());
    for (float& value : w) value /= Scale(output);  // a power of two
    return w;
  }
  float Scale(int64_t output) const {
    float scale = 1;
    if (packed.dtype == kE4m3) std::memcpy(&scale, packed.scales.data() + output * sizeof scale, sizeof scale);
    return scale;
  }
  // fn(row, output, weights of the output): what y has there.
  template <typename Fn>
  std::vector<float> Expected(int m, const Fn& fn) const {
    std::vector<float> y(m * y_stride(), 7.0f);
    for (int64_t o = 0; o < tensor.rows; ++o) {
      const std::vector<float> w = Weights(o);
      for (int r = 0; r < m; ++r) y[r * y_stride() + o] = fn(r, o, w);
    }
    return y;
  }
  // By the definition in matmul_bf16.cu and the emulator's order in a step.
  std::vector<float> InOrder(int m, bool with_bias) const {
    return Expected(m, [&](int r, int64_t o, const std::vector<float>& w) {
      float total = 0;
      for (int64_t k = 0; k < tensor.cols; k += kBf16Piece) {
        float acc = 0;
        for (int64_t i = k; i < std::min<int64_t>(k + kBf16Piece, tensor.cols); ++i) {
          acc += w[i] * Rounded(x[r * x_stride + i]);
        }
        total = k == 0 ? acc : total + acc;
      }
      total *= Scale(o);
      return with_bias ? total + bias[o] : total;
    });
  }
};

// By the warp's instruction and by the warpgroup's, which the emulator gives one order.
class Bf16MatMulTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Instructions, Bf16MatMulTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Wgmma" : "Mma"; });

// Odd numbers of everything that the format allows; rows for each kernel and at its edges; inputs of one piece and
// more, and of more pieces than a block has warps.
TEST_P(Bf16MatMulTest, IsItsDefinition) {
  for (const Format& format : kFormats) {
    const bool blocks = BlockElements(format.dtype) > 1;
    for (const auto& [rows, cols, m] : {std::tuple{1, 1, 1}, {33, 67, 3}, {70, 1051, 8}, {31, 4200, 9}, {40, 1079, 17},
                                        {45, 97, 64}, {161, 40, 65}, {37, 1060, 130}, {70, 2100, 33},
                                        {5, 65, 200}}) {
      const int64_t whole = blocks ? (cols + 31) / 32 * 32 : cols;
      SCOPED_TRACE(testing::Message() << format.name() << " " << rows << " x " << whole << ", " << m << " rows");
      const Product product(format, rows, whole, m, 11);
      ExpectSameBitsInAnyOrder(product.InOrder(m, m % 2 == 1), [&] { return product.Compute(GetParam(), m, m % 2 == 1); });
    }
  }
}

// What a GPU is held to, whose order in a step is its own (tests/gpu/selftest): the exact product of the rounded
// values, within what f32 sums of so many terms can lose. A wrong element would be off by about a term.
TEST_P(Bf16MatMulTest, IsNearTheExactProductOfRoundedValues) {
  for (const Format& format : kFormats) {
    constexpr int kRows = 10;
    const Product product(format, 40, 1120, kRows, 21);
    const std::vector<float> got = product.Compute(GetParam(), kRows, false);
    product.Expected(kRows, [&](int r, int64_t o, const std::vector<float>& w) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < product.tensor.cols; ++k) {
        const double term = double{w[k]} * product.Scale(o) * Rounded(product.x[r * product.x_stride + k]);
        sum += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(got[r * product.y_stride() + o], sum, 1e-5 * size) << format.name() << " " << r << " " << o;
      return 0.0f;
    });
  }
}

TEST_P(Bf16MatMulTest, ARowsBitsDoNotDependOnTheNumberOfRowsNorOnItsPlace) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name());
    constexpr int kMost = 300;
    const Product product(format, 40, 1056, kMost, 31);
    const std::vector<float> all = product.Compute(GetParam(), kMost, true);
    for (const int m : {1, 8, 9, 17, 33, 64, 65, 129, 193}) {
      for (const int first : {0, kMost - m}) {
        const std::vector<float> some = product.Compute(GetParam(), m, true, first);
        EXPECT_EQ(std::memcmp(some.data(), all.data() + first * product.y_stride(), some.size() * 4), 0)
            << m << " rows from " << first;
      }
    }
  }
}

// Every number of rows, each at another place.
TEST_P(Bf16MatMulTest, AnyNumberOfRowsHasTheSameBits) {
  constexpr int kMost = 300;
  const Product product({DType::kQ8_0}, 36, 96, kMost, 71);
  const std::vector<float> all = product.Compute(GetParam(), kMost, false);
  for (int m = 1; m < kMost; ++m) {
    const int first = m * 37 % (kMost - m + 1);
    const std::vector<float> some = product.Compute(GetParam(), m, false, first);
    ASSERT_EQ(std::memcmp(some.data(), all.data() + first * product.y_stride(), some.size() * 4), 0)
        << m << " rows from " << first;
  }
}

// What lies beyond the last input or row must not matter, not even as NaN; but a NaN of a row is that row's.
TEST_P(Bf16MatMulTest, ReadsNothingOutsideOfItsRows) {
  for (const int m : {10, 70}) {
    Product product({DType::kBF16}, 35, 77, m, 41);
    const std::vector<float> before = product.Compute(GetParam(), m, false);
    for (int r = 0; r < m; ++r) {
      for (int64_t k = 77; k < product.x_stride; ++k) product.x[r * product.x_stride + k] = NAN;
    }
    EXPECT_EQ(product.Compute(GetParam(), m, false), before);
    product.x[product.x_stride] = NAN;  // row 1
    const std::vector<float> after = product.Compute(GetParam(), m, false);
    for (int r = 0; r < m; ++r) {
      for (int64_t o = 0; o < product.tensor.rows; ++o) {
        const float want = before[r * product.y_stride() + o], got = after[r * product.y_stride() + o];
        EXPECT_TRUE(r == 1 ? std::isnan(got) : got == want) << r << " " << o;
      }
    }
  }
}

// Ties to even in both operands, infinities kept: as the CPU rounds.
TEST_P(Bf16MatMulTest, RoundsToNearestEven) {
  Product product({DType::kF32}, 2, 4, 1, 51);
  const float weights[2][4] = {{1 + 1.0f / 256, 1 + 3.0f / 256, -(1 + 1.0f / 256), 0}, {3e38f, 1, 0, 0}};
  std::memcpy(product.tensor.bytes.data(), weights, sizeof weights);
  product.packed = PackForDevice(product.tensor.host());
  product.x = {1, 256, 65536 + 256, 0, 0, 0, 0};
  // 1 * 1 + (1 + 4/256) * 256 - 1 * 65536 (its tie goes down to even).
  EXPECT_EQ(product.Compute(GetParam(), 1, false)[0], 1 + 260 - 65536);
  EXPECT_EQ(product.Compute(GetParam(), 1, false)[1], Rounded(3e38f) + 256);
  product.x[0] = 3.4e38f;  // beyond bfloat16's largest
  EXPECT_TRUE(std::isinf(product.Compute(GetParam(), 1, false)[0]));
}

// Every finite code, as the device unpacks it: to f32, and to bfloat16 for products with rows of the identity.
TEST_P(Bf16MatMulTest, UnpacksEveryE4m3Code) {
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<uint8_t>(code));
  }
  const int n = static_cast<int>(codes.size());
  Product product({DType::kF32}, 2, n, n, 61);
  std::vector<float> values(2 * n);
  for (int i = 0; i < n; ++i) {
    values[i] = E4m3ToFloat(codes[i]);
    values[n + i] = 0x1p-20f * E4m3ToFloat(codes[n - 1 - i]);  // its scale
  }
  std::memcpy(product.tensor.bytes.data(), values.data(), values.size() * sizeof(float));
  product.packed = PackForDevice(product.tensor.host(), WeightStorage::kFp8);
  EXPECT_EQ(product.Scale(0), 1);
  EXPECT_EQ(product.Scale(1), 0x1p-20f);
  std::fill(product.x.begin(), product.x.end(), 0.0f);
  for (int i = 0; i < n; ++i) product.x[i * product.x_stride + i] = 1;
  const std::vector<float> y = product.Compute(GetParam(), n, false);
  const DeviceMatrix weight = {kE4m3, 2, n, product.packed.codes.data(), product.packed.scales.data()};
  for (int row = 0; row < 2; ++row) {
    std::vector<float> read(n), unpacked(n);
    ReadRow(weight, row, read.data(), nullptr);
    UnpackE4m3Row(product.packed, n, row, unpacked.data());
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(y[i * product.y_stride() + row], values[row * n + i]) << row << " " << i;
      EXPECT_EQ(read[i], values[row * n + i]) << row << " " << i;
      EXPECT_EQ(unpacked[i], values[row * n + i]) << row << " " << i;
    }
  }
}

// Each row's scale is the least power of two with which nothing saturates, and each weight the nearest multiple.
TEST(PackForDeviceTest, Fp8IsTheNearestWithTheRowsScale) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    const int64_t cols = BlockElements(dtype) > 1 ? 256 : 77;
    const TestTensor tensor = RandomTensor(dtype, 35, cols, 81);
    const PackedWeights packed = PackForDevice(tensor.host(), WeightStorage::kFp8);
    ASSERT_EQ(packed.dtype, kE4m3);
    EXPECT_EQ(packed.codes.size(), 2u * 32 * ((cols + 15) / 16 * 16));
    EXPECT_EQ(packed.scales.size(), 2u * 32 * 4);
    for (int64_t r = 0; r < tensor.rows; ++r) {
      const std::vector<float> w = tensor.Row(r);
      float largest = 0, scale;
      for (const float value : w) largest = std::max(largest, std::abs(value));
      std::memcpy(&scale, packed.scales.data() + r * sizeof scale, sizeof scale);
      int exponent;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << "a power of two";
      EXPECT_LE(largest / scale, kE4m3Max);
      EXPECT_GT(largest / scale, kE4m3Max / 2);
      std::vector<float> unpacked(cols);
      UnpackE4m3Row(packed, cols, r, unpacked.data());
      for (int64_t k = 0; k < cols; ++k) {
        float nearest = 0;
        for (int code = 0; code < 256; ++code) {
          const float value = scale * E4m3ToFloat(static_cast<uint8_t>(code));
          if (std::abs(value - w[k]) < std::abs(nearest - w[k])) nearest = value;
        }
        EXPECT_EQ(std::abs(unpacked[k] - w[k]), std::abs(nearest - w[k])) << Name(dtype) << " " << r << " " << k;
      }
    }
  }
}

TEST(PackForDeviceTest, Fp8OfRowsThatHaveNoScale) {
  constexpr float kTiny = 1e-44f;
  const float rows[5][4] = {{0, -0.0f, 0, 0}, {1, INFINITY, 0, 0}, {1, NAN, 0, 0}, {kTiny, 0, 0, 0}, {3e38f, -1, 0, 0}};
  const PackedWeights packed = PackForDevice({DType::kF32, 5, 4, rows}, WeightStorage::kFp8);
  float out[4];
  UnpackE4m3Row(packed, 4, 0, out);
  EXPECT_EQ(std::vector<float>(out, out + 4), std::vector<float>(4));
  for (const int row : {1, 2}) {
    UnpackE4m3Row(packed, 4, row, out);
    for (const float value : out) EXPECT_TRUE(std::isnan(value));
  }
  UnpackE4m3Row(packed, 4, 3, out);
  EXPECT_EQ(out[0], 0);  // below the least scale's least value
  UnpackE4m3Row(packed, 4, 4, out);
  EXPECT_NEAR(out[0] / 3e38f, 1, 1.0 / 16);
  EXPECT_EQ(out[1], 0);
  // 4 bits are fewer: they stay.
  EXPECT_EQ(PackForDevice(RandomTensor(DType::kQ4_0, 3, 64, 1).host(), WeightStorage::kFp8).dtype, DType::kQ4_0);
}

}  // namespace
}  // namespace baton::kernels::cuda
