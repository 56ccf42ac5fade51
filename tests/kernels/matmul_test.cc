#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <limits>
#include <thread>

#include "kernels/backend.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels {
namespace {

struct Shape {
  int m;
  int64_t rows, cols;
};

std::vector<float> Multiply(Backend& backend, const TestTensor& tensor, const std::vector<float>& x, int m,
                            const float* bias = nullptr) {
  const std::unique_ptr<WeightMatrix> weight = backend.PackWeights(tensor.host()).value();
  const int64_t stride = tensor.rows + 3;
  std::vector<float> y(m * stride, -7.0f);
  const MatMulOutput output{weight.get(), bias, y.data(), stride};
  backend.MatMul(x.data(), tensor.cols, m, {&output, 1});
  return y;
}

// The activations as the integer class sees them, by its definition and not by its code.
std::vector<double> QuantizedActivations(const float* x, int64_t cols) {
  std::vector<double> result(cols);
  for (int64_t g = 0; g < cols; g += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[g + i]));
    for (int i = 0; i < 32; ++i) {
      result[g + i] = amax == 0 ? 0 : double{amax / 127.0f} * std::nearbyintf(x[g + i] * (127.0f / amax));
    }
  }
  return result;
}

class MatMulTest : public testing::TestWithParam<DType> {
 protected:
  // Two super-blocks for the K formats, an odd number of groups for the others; plain floats take any width.
  int64_t Cols(int odd) const {
    const int64_t block = BlockElements(GetParam());
    return block == 1 ? 37 * odd + 8 : block == 32 ? 32 * (2 * odd + 1) : 256 * (odd + 1);
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, MatMulTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(MatMulTest, ScalarAgreesWithExactArithmetic) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (numerics == NumericsClass::kBf16 && GetParam() != DType::kBF16) continue;  // as kInt
    const auto backend = MakeBackend(Isa::kScalar, numerics);
    for (const Shape& shape : {Shape{1, 16, Cols(1)}, Shape{3, 37, Cols(2)}, Shape{9, 5, Cols(3)}}) {
      const TestTensor tensor = RandomTensor(GetParam(), shape.rows, shape.cols, 1);
      const std::vector<float> x = RandomFloats(shape.m * shape.cols, 2);
      const std::vector<float> bias = RandomFloats(shape.rows, 3);
      const std::vector<float> y = Multiply(*backend, tensor, x, shape.m, bias.data());
      const bool integer = numerics != NumericsClass::kF32 && BlockElements(GetParam()) > 1;
      const bool rounded = numerics == NumericsClass::kBf16 && GetParam() == DType::kBF16;
      for (int r = 0; r < shape.m; ++r) {
        const float* row = x.data() + r * shape.cols;
        std::vector<double> activations =
            integer ? QuantizedActivations(row, shape.cols) : std::vector<double>(row, row + shape.cols);
        if (rounded) {
          for (double& value : activations) value = Bf16ToFloat(FloatToBf16(static_cast<float>(value)));
        }
        for (int64_t o = 0; o < shape.rows; ++o) {
          const std::vector<float> w = tensor.Row(o);
          double expected = bias[o], magnitude = std::fabs(bias[o]), quantization = 0;
          for (int64_t k = 0; k < shape.cols; ++k) {
            expected += w[k] * activations[k];
            magnitude += std::fabs(w[k] * activations[k]);
            quantization += std::fabs(w[k] * (activations[k] - row[k]));
          }
          // A sum of n products in f32 is off by at most n half-units in the last place of its magnitude. Formats with
          // minimums cancel between code and minimum, whose parts are larger than the value: 15 codes of margin.
          const double rounding = std::ldexp(1.0, -24) * (shape.cols + 4) * 16 * magnitude;
          const double actual = y[r * (shape.rows + 3) + o];
          ASSERT_NEAR(actual, expected, rounding) << "row " << r << " output " << o;
          ASSERT_LE(quantization, 0.02 * magnitude + 1e-6);  // the class itself is a close approximation
        }
        EXPECT_EQ(y[r * (shape.rows + 3) + shape.rows], -7.0f) << "wrote past the row";
      }
    }
  }
}

TEST_P(MatMulTest, BitsDependNeitherOnInstructionSetNorRowsNorThreads) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (numerics == NumericsClass::kBf16 && GetParam() != DType::kBF16) continue;  // as kInt
    for (const Shape& shape : {Shape{87, 83, Cols(1)}, Shape{21, 160, Cols(2)}}) {
      const TestTensor tensor = RandomTensor(GetParam(), shape.rows, shape.cols, 11);
      const std::vector<float> x = RandomFloats(shape.m * shape.cols, 12);
      const int64_t stride = shape.rows + 3;
      const std::vector<float> expected = Multiply(*MakeBackend(Isa::kScalar, numerics), tensor, x, shape.m);
      for (const Isa isa : AvailableIsas()) {
        for (const int threads : {1, 3}) {
          const auto backend = MakeBackend(isa, numerics, threads);
          const std::vector<float> all = Multiply(*backend, tensor, x, shape.m);
          ASSERT_EQ(std::memcmp(all.data(), expected.data(), all.size() * 4), 0) << backend->name() << " x" << threads;
          for (const int m : {1, 2, 3, 4, 7, 10, 13, 16, 19, 64, 71}) {  // every tile size and remainder
            if (m > shape.m) break;
            const int first = (m * 7) % (shape.m - m + 1);
            const std::vector<float> part(x.begin() + first * shape.cols, x.begin() + (first + m) * shape.cols);
            const std::vector<float> y = Multiply(*backend, tensor, part, m);
            ASSERT_EQ(std::memcmp(y.data(), expected.data() + first * stride, y.size() * 4), 0)
                << backend->name() << " rows " << first << "+" << m;
          }
        }
      }
    }
  }
}

// Where weights lie changes neither a product nor a row that is read back.
TEST_P(MatMulTest, LayoutsGiveTheSameBits) {
  const int64_t cols = Cols(2), rows = 83;
  const TestTensor tensor = RandomTensor(GetParam(), rows, cols, 41);
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (numerics == NumericsClass::kBf16 && GetParam() != DType::kBF16) continue;  // as kInt
    for (const Isa isa : AvailableIsas()) {
      std::vector<std::vector<float>> results;
      size_t bytes[3] = {};
      for (const WeightLayout layout : {WeightLayout::kDecode, WeightLayout::kPrefill, WeightLayout::kBoth}) {
        const auto backend =
            Backend::CreateCpu({.isa = isa, .numerics = numerics, .num_threads = 1, .weight_layout = layout}).value();
        const auto weight = backend->PackWeights(tensor.host()).value();
        bytes[static_cast<int>(layout)] = weight->memory_bytes();
        std::vector<float> row(cols);
        for (const int64_t r : {int64_t{0}, int64_t{33}, rows - 1}) {
          backend->ReadRow(*weight, r, row.data());
          ASSERT_EQ(row, tensor.Row(r)) << backend->name();
        }
        std::vector<float> all;
        for (const int m : {1, 4, 5, 18, 67}) {
          const std::vector<float> y = Multiply(*backend, tensor, RandomFloats(m * cols, 42), m);
          all.insert(all.end(), y.begin(), y.end());
        }
        results.push_back(std::move(all));
      }
      ASSERT_EQ(results[0], results[1]) << static_cast<int>(isa);
      ASSERT_EQ(results[0], results[2]) << static_cast<int>(isa);
      EXPECT_GE(bytes[1], bytes[0]);
      EXPECT_EQ(bytes[2], bytes[1] == bytes[0] ? bytes[0] : bytes[0] + bytes[1]);  // held once where they are the same
      const bool four_bit = GetParam() == DType::kQ4_0 || GetParam() == DType::kQ4_1 || GetParam() == DType::kQ4_K;
      EXPECT_EQ(bytes[1] > bytes[0], four_bit && numerics != NumericsClass::kF32);
    }
  }
}

TEST_P(MatMulTest, ValuesThatAreNotFiniteShowInTheirRowOnly) {
  const int64_t cols = Cols(1);
  const TestTensor tensor = RandomTensor(GetParam(), 17, cols, 21);
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = RandomFloats(3 * cols, 22);
      x[cols + 5] = bad;
      const std::vector<float> y = Multiply(*backend, tensor, x, 3);
      for (int o = 0; o < 17; ++o) {
        EXPECT_TRUE(std::isfinite(y[o]));
        EXPECT_FALSE(std::isfinite(y[20 + o])) << backend->name() << " output " << o;
        EXPECT_TRUE(std::isfinite(y[40 + o]));
      }
    }
  }
}

// -128 times -127, twice, is one past what the AVX2 kernel's 16-bit sums could hold if it multiplied them directly.
TEST(MatMulExtremesTest, ExtremeCodesDoNotSaturate) {
  TestTensor tensor = RandomTensor(DType::kQ8_0, 16, 64, 1);
  for (int64_t row = 0; row < 16; ++row) {
    for (int block = 0; block < 2; ++block) {
      uint8_t* p = tensor.bytes.data() + row * tensor.row_bytes() + block * 34;
      const uint16_t one = FloatToHalf(1.0f);
      std::memcpy(p, &one, 2);
      std::memset(p + 2, row % 2 == 0 ? 0x80 : 0x7f, 32);
    }
  }
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> x(64, sign * 127.0f);
    for (const Isa isa : AvailableIsas()) {
      const auto backend = MakeBackend(isa);
      const std::vector<float> y = Multiply(*backend, tensor, x, 1);
      for (int o = 0; o < 16; ++o) EXPECT_EQ(y[o], sign * 64 * 127 * (o % 2 == 0 ? -128 : 127)) << backend->name();
    }
  }
}

TEST(MatMulExtremesTest, TinyAndZeroActivations) {
  const TestTensor tensor = RandomTensor(DType::kQ4_1, 16, 64, 1);
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa);
    for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), 1e-37f}) {
      for (const float y : Multiply(*backend, tensor, std::vector<float>(64, value), 1)) {
        EXPECT_TRUE(y == 0 || y == -7.0f) << backend->name();
      }
    }
  }
}

// Products and sums around the smallest normal number, where vdpbf16ps takes denormals as zero, before and after.
TEST(MatMulExtremesTest, Bf16DenormalsAreFlushedAlikeEverywhere) {
  constexpr int64_t kCols = 37, kRows = 80;
  TestTensor tensor = RandomTensor(DType::kBF16, kRows, kCols, 1);
  std::mt19937 rng(2);
  for (int64_t i = 0; i < kRows * kCols; ++i) {  // any sign and mantissa, exponents around 2^-64, some denormal
    const uint16_t exponent = rng() % 8 == 0 ? 0 : 58 + rng() % 10;
    const uint16_t bits = static_cast<uint16_t>((rng() & 0x807f) | exponent << 7);
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  for (const int m : {1, 3, 21}) {
    std::vector<float> x = RandomFloats(m * kCols, 3), bias = RandomFloats(kRows, 4);
    for (float& value : x) value = std::ldexp(value, -static_cast<int>(62 + rng() % 10) - (rng() % 16 == 0 ? 70 : 0));
    for (float& value : bias) value = rng() % 2 == 0 ? 0 : std::ldexp(value, -static_cast<int>(124 + rng() % 6));
    const std::vector<float> expected =
        Multiply(*MakeBackend(Isa::kScalar, NumericsClass::kBf16), tensor, x, m, bias.data());
    int zeros = 0;
    for (const float y : expected) {
      ASSERT_TRUE(y == 0 || std::isnormal(y)) << y;
      zeros += y == 0;
    }
    EXPECT_GT(zeros, 0);
    EXPECT_LT(zeros, m * kRows);
    for (const Isa isa : AvailableIsas()) {
      const auto backend = MakeBackend(isa, NumericsClass::kBf16);
      const std::vector<float> y = Multiply(*backend, tensor, x, m, bias.data());
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << backend->name();
    }
  }
}

// The flushing ends with the product: what comes after sees denormals.
TEST(MatMulExtremesTest, DenormalsAreBackAfterABf16Product) {
  const TestTensor tensor = RandomTensor(DType::kBF16, 16, 32, 1);
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa, NumericsClass::kBf16);
    Multiply(*backend, tensor, RandomFloats(32, 2), 1);
    volatile float smallest = std::numeric_limits<float>::min();
    EXPECT_GT(smallest / 2, 0.0f) << backend->name();
  }
}

// One call with several outputs of different formats and sizes equals a call for each.
TEST(MatMulOutputsTest, OutputsShareTheInput) {
  const int64_t cols = 256;
  const int m = 5;
  std::vector<TestTensor> tensors;
  for (size_t i = 0; i < std::size(kAllDTypes); ++i) {
    tensors.push_back(
        RandomTensor(kAllDTypes[i], 7 + 13 * static_cast<int64_t>(i), cols, 31 + static_cast<uint32_t>(i)));
  }
  const std::vector<float> x = RandomFloats(m * cols, 32);
  for (const Isa isa : AvailableIsas()) {
    const auto backend = MakeBackend(isa, NumericsClass::kBf16, 2);
    std::vector<std::unique_ptr<WeightMatrix>> weights;
    std::vector<std::vector<float>> results;
    std::vector<MatMulOutput> outputs;
    for (const TestTensor& tensor : tensors) {
      weights.push_back(backend->PackWeights(tensor.host()).value());
      EXPECT_EQ(weights.back()->rows(), tensor.rows);
      EXPECT_EQ(weights.back()->cols(), cols);
      EXPECT_GE(weights.back()->memory_bytes(), tensor.bytes.size());
      results.emplace_back(m * (tensor.rows + 3), -7.0f);
      outputs.push_back({weights.back().get(), nullptr, results.back().data(), tensor.rows + 3});
    }
    backend->MatMul(x.data(), cols, m, outputs);
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(results[i], Multiply(*backend, tensors[i], x, m));
  }
}

TEST(PackWeightsTest, NoMemoryIsAnError) {
  const auto backend = MakeBackend(Isa::kScalar);
  const absl::Status status = backend->PackWeights({DType::kF32, int64_t{1} << 40, 1024, nullptr}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(backend->PackWeights(RandomTensor(DType::kF32, 16, 16, 1).host()).ok());  // and it can go on
}

TEST(CreateCpuTest, PinsToCoresThatItMayUse) {
  const auto refused = Backend::CreateCpu({.num_threads = 1, .cores = {4095}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("4095"), absl::string_view::npos);
  int core = 0;
  while (!Backend::CreateCpu({.num_threads = 1, .cores = {core}}).ok()) ASSERT_LT(++core, 1024);
  std::thread caller([core] {  // on a thread of its own, which stays pinned
    const TestTensor tensor = RandomTensor(DType::kQ8_0, 16, 32, 1);
    const auto backend = Backend::CreateCpu({.num_threads = 2, .cores = {core}}).value();
    Multiply(*backend, tensor, RandomFloats(32, 2), 1);
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    EXPECT_TRUE(CPU_ISSET(core, &set));
  });
  caller.join();
}

TEST(CreateCpuTest, RefusesWhatTheCpuLacks) {
  const cpu::CpuSets none, avx2 = {.avx2 = true}, avx512 = {.avx2 = true, .avx512 = true};
  const cpu::CpuSets slow_bf16 = {.avx2 = true, .avx512 = true, .avx512_bf16 = true};
  const cpu::CpuSets fast_bf16 = {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .bf16_dot_is_fast = true};
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, none).value(), Isa::kScalar);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, avx2).value(), Isa::kAvx2);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, avx512).value(), Isa::kAvx512);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, slow_bf16).value(), Isa::kAvx512);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, fast_bf16).value(), Isa::kAvx512Bf16);
  const cpu::CpuSets amx = {.avx2 = true, .avx512 = true, .amx = true};
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAuto, amx).value(), Isa::kAmx);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAmx, avx512).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAvx512Bf16, slow_bf16).value(), Isa::kAvx512Bf16);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kScalar, fast_bf16).value(), Isa::kScalar);
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAvx512Bf16, avx512).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status no_avx512 = cpu::ResolveIsa(Isa::kAvx512, avx2).status();
  EXPECT_EQ(no_avx512.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(no_avx512.message().find("scalar, avx2;"), absl::string_view::npos) << no_avx512;
  EXPECT_EQ(cpu::ResolveIsa(Isa::kAvx2, none).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Backend::CreateCpu({.num_threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Backend::CreateCpu({.num_threads = 1 << 20}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeBackend(Isa::kScalar)->name(), "cpu/scalar");
}

}  // namespace
}  // namespace baton::kernels
