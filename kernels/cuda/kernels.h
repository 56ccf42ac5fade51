// The CUDA kernels as host functions. Each launches on a stream and returns; nothing waits and nothing allocates.
//
// All pointers are device memory. Arrays are row-major f32 with the row stride in elements, as in kernels/backend.h, and
// results have the same bits as the CPU backend's in the class kF32, with one difference that README.md names (products
// of more than 512 inputs). Outputs and inputs must not alias unless said.
//
// Shapes that a kernel cannot run (README.md has the limits) are the caller's to refuse.
#ifndef BATON_KERNELS_CUDA_KERNELS_H_
#define BATON_KERNELS_CUDA_KERNELS_H_

#include <cstdint>

struct CUstream_st;

namespace baton::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// y[r] = x[r] / rms(x[r]) * weight. With a residual, x[r] += residual[r] first, which is kept. y may be x without one.
struct RmsNormArgs {
  float* x = nullptr;
  int64_t x_stride = 0;
  const float* residual = nullptr;  // [m, dim] or null
  int64_t residual_stride = 0;
  int m = 0, dim = 0;
  const float* weight = nullptr;
  float epsilon = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void RmsNorm(const RmsNormArgs& args, Stream stream);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KERNELS_H_
