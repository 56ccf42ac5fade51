// The formats of DeviceMatrix as types: how 16 bytes become inputs. A value is what DequantizeRow gives, bit for bit.
#ifndef BATON_KERNELS_CUDA_WEIGHT_FORMAT_CUH_
#define BATON_KERNELS_CUDA_WEIGHT_FORMAT_CUH_

#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/math.cuh"

namespace baton::kernels::cuda {

template <DType kDType>
struct WeightFormat {
  static constexpr int kStep = MatrixStep(kDType);
  static constexpr bool kScaled = kDType == DType::kQ8_0 || kDType == DType::kQ4_0;

  // Input k of the 16 bytes; k is known when compiling, so that nothing is indexed.
  __device__ __forceinline__ static float Value(const uint4& bytes, float scale, int k) {
    if constexpr (kDType == DType::kF32) return __uint_as_float(Word(bytes, k));
    if constexpr (kDType == DType::kF16) return HalfValue(static_cast<uint16_t>(Word(bytes, k / 2) >> (k % 2 * 16)));
    if constexpr (kDType == DType::kBF16) {
      const uint32_t word = Word(bytes, k / 2);
      return __uint_as_float(k % 2 == 0 ? word << 16 : word & 0xffff0000);
    }
    if constexpr (kDType == kE4m3) return scale * E4m3Value(Word(bytes, k / 4) >> (k % 4 * 8) & 0xff);
    if constexpr (kDType == DType::kQ8_0) {
      return scale * static_cast<float>(static_cast<int8_t>(Word(bytes, k / 4) >> (k % 4 * 8)));
    }
    const uint32_t nibble = Word(bytes, k % 16 / 4) >> (k % 4 * 8 + k / 16 * 4) & 0xf;
    return scale * static_cast<float>(static_cast<int>(nibble) - 8);
  }

 private:
  __device__ __forceinline__ static uint32_t Word(const uint4& bytes, int i) {
    return i == 0 ? bytes.x : i == 1 ? bytes.y : i == 2 ? bytes.z : bytes.w;
  }
};

// Where the codes and scales of one lane of one group of rows begin.
template <DType kDType>
struct LaneWeights {
  using Format = WeightFormat<kDType>;
  const uint4* codes;
  const void* scales;

  __device__ __forceinline__ LaneWeights(const DeviceMatrix& w, int64_t group, int lane) {
    const int64_t steps = (w.cols + Format::kStep - 1) / Format::kStep;
    codes = static_cast<const uint4*>(w.codes) + group * steps * kMatrixLanes + lane;
    scales = kDType == kE4m3    ? static_cast<const void*>(static_cast<const float*>(w.scales) + group * kMatrixLanes + lane)
             : Format::kScaled ? static_cast<const uint16_t*>(w.scales) + group * (w.cols / 32) * kMatrixLanes + lane
                               : nullptr;
  }
  __device__ __forceinline__ uint4 Codes(int64_t step) const { return codes[step * kMatrixLanes]; }
  __device__ __forceinline__ float Scale(int64_t step) const {
    if constexpr (kDType == kE4m3) return *static_cast<const float*>(scales);
    return Format::kScaled ? HalfValue(static_cast<const uint16_t*>(scales)[step * Format::kStep / 32 * kMatrixLanes]) : 1.0f;
  }
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_WEIGHT_FORMAT_CUH_
