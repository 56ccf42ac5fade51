// Random weights of every format, and the backends that this CPU can run.
#ifndef BATON_TESTS_KERNELS_KERNEL_TEST_UTIL_H_
#define BATON_TESTS_KERNELS_KERNEL_TEST_UTIL_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_features.h"

namespace baton::kernels {

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                       DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                       DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

inline std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas = {Isa::kScalar};
  if (cpu::CpuHasAvx2()) isas.push_back(Isa::kAvx2);
  if (cpu::CpuHasAvx512()) isas.push_back(Isa::kAvx512);
  if (cpu::CpuHasAvx512Bf16()) isas.push_back(Isa::kAvx512Bf16);
  if (cpu::CpuHasAmx()) isas.push_back(Isa::kAmx);
  return isas;
}

inline std::unique_ptr<Backend> MakeBackend(Isa isa, NumericsClass numerics = NumericsClass::kInt,
                                            int num_threads = 1) {
  return Backend::CreateCpu({.isa = isa, .numerics = numerics, .num_threads = num_threads}).value();
}

inline std::vector<float> RandomFloats(size_t n, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

// Owns the bytes of a weight as a model file would hold it. Every bit pattern of codes occurs; scales are moderate.
struct TestTensor {
  DType dtype;
  int64_t rows, cols;
  std::vector<uint8_t> bytes;

  HostTensor host() const { return {dtype, rows, cols, bytes.data()}; }
  int64_t row_bytes() const { return cols / BlockElements(dtype) * BlockBytes(dtype); }
  std::vector<float> Row(int64_t row) const {
    std::vector<float> values(cols);
    DequantizeRow(dtype, bytes.data() + row * row_bytes(), values.data(), cols);
    return values;
  }
};

inline TestTensor RandomTensor(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 rng(seed);
  TestTensor tensor{dtype, rows, cols, {}};
  tensor.bytes.resize(rows * tensor.row_bytes());
  std::normal_distribution<float> normal(0, 0.05f);
  const auto put_half = [&](uint8_t* p, float value) {
    const uint16_t h = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToHalf(value);
    std::memcpy(p, &h, 2);
  };
  if (BlockElements(dtype) == 1) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float value = normal(rng);
      if (dtype == DType::kF32) {
        std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
      } else {
        put_half(tensor.bytes.data() + 2 * i, value);
      }
    }
    return tensor;
  }
  for (uint8_t& byte : tensor.bytes) byte = static_cast<uint8_t>(rng());
  const bool two_halves =
      dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  const int scale_offset = dtype == DType::kQ6_K ? 208 : 0;
  for (size_t block = 0; block < tensor.bytes.size(); block += BlockBytes(dtype)) {
    put_half(tensor.bytes.data() + block + scale_offset, normal(rng));
    if (two_halves) put_half(tensor.bytes.data() + block + 2, normal(rng));
  }
  return tensor;
}

}  // namespace baton::kernels

#endif  // BATON_TESTS_KERNELS_KERNEL_TEST_UTIL_H_
