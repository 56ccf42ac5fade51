// One block a row. The row waits in shared memory, because its squares add up in 16 chains (element i in chain i % 16)
// whatever the number of threads: that order is the CPU's.
#include "kernels/cuda/device.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChains = 16;

__global__ void __launch_bounds__(kThreads) RmsNormKernel(RmsNormArgs a) {
  float* const row = DynamicShared<float>();
  float& scale = BlockShared<float>();
  float* const x = a.x + blockIdx.x * a.x_stride;
  const float* const residual = a.residual == nullptr ? nullptr : a.residual + blockIdx.x * a.residual_stride;
  for (int i = threadIdx.x; i < a.dim; i += kThreads) {
    float value = x[i];
    if (residual != nullptr) {
      value += residual[i];
      x[i] = value;
    }
    row[i] = value;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float squares = 0;
    const int chain = threadIdx.x % kChains;
    for (int i = chain; i < a.dim; i += kChains) squares = fmaf(row[i], row[i], squares);
    // Lane i meets i + 8, then + 4, + 2, + 1: every lane ends with the tree's sum.
    for (int distance = 8; distance > 0; distance /= 2) squares += __shfl_xor_sync(kWholeWarp, squares, distance);
    if (threadIdx.x == 0) scale = 1.0f / sqrtf(squares / static_cast<float>(a.dim) + a.epsilon);
  }
  __syncthreads();
  float* const y = a.y + blockIdx.x * a.y_stride;
  for (int i = threadIdx.x; i < a.dim; i += kThreads) y[i] = row[i] * scale * a.weight[i];
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, Stream stream) {
  Launch(RmsNormKernel, dim3(args.m), dim3(kThreads), args.dim * sizeof(float), stream, args);
}

}  // namespace baton::kernels::cuda
