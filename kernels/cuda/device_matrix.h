// How a weight lies on the device (pack_weights.h puts it there).
//
// Rows go in groups of 32, one for each lane of a warp; each lane reads 16 bytes at a time, so that a warp reads 512
// bytes in a row and one product streams through memory in order:
//   codes   [rows / 32][cols / step][32][16 bytes], step = 4 (F32), 8 (F16, BF16), 16 (Q8_0, E4M3) or 32 (Q4_0) inputs
//   scales  [rows / 32][cols / 32][32] halves (Q8_0, Q4_0), [rows / 32][32] floats (E4M3)
// Q4_0: byte i has input i in its low and input i + 16 in its high half, each + 8, as in the file. Rows and inputs that
// there are not are zeros, and no result depends on them.
#ifndef BATON_KERNELS_CUDA_DEVICE_MATRIX_H_
#define BATON_KERNELS_CUDA_DEVICE_MATRIX_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace baton::kernels::cuda {

inline constexpr int kMatrixLanes = 32;

// A format of the device's own, beside those of files: E4M3 (kernels/e4m3.h) with a scale for each row, a power of two, so
// that scaling rounds nothing, before a sum or behind it. Scales of rows, not of tensors, are what FP8 models with static
// weights have (llm-compressor's FP8_DYNAMIC, vLLM); finer blocks (DeepSeek-V3: 128 x 128, arXiv:2412.19437) would gain
// little here: E4M3 has 17 binary orders below a row's largest value, and no activations are in FP8.
inline constexpr DType kE4m3 = static_cast<DType>(128);
// As a kernel's template argument: nvcc has no name for a value without an enumerator.
constexpr int FormatNumber(DType dtype) { return static_cast<int>(dtype); }

// Not owned; device memory.
struct DeviceMatrix {
  DType dtype = DType::kF32;  // F32, F16, BF16, Q8_0, Q4_0 or kE4m3
  int64_t rows = 0, cols = 0;
  const void* codes = nullptr;   // 16-byte aligned
  const void* scales = nullptr;  // Q8_0, Q4_0, kE4m3
};

// The inputs in 16 bytes; 0 for a format that the device does not have.
constexpr int MatrixStep(DType dtype) {
  if (dtype == kE4m3) return 16;
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 8;
    case DType::kQ8_0:
      return 16;
    case DType::kQ4_0:
      return 32;
    default:
      return 0;
  }
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DEVICE_MATRIX_H_
