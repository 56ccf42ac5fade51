// What kernels are written against: CUDA, or on the host the emulator. Included by .cu files only.
#ifndef BATON_KERNELS_CUDA_DEVICE_CUH_
#define BATON_KERNELS_CUDA_DEVICE_CUH_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/streams.h"
#endif

#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffff;
// Dynamic shared memory beyond this is asked for: 48 KB less what a kernel may have beside it.
inline constexpr size_t kPlainSharedBytes = 24 << 10;

// An object in the block's shared memory. kIndex tells several of one kernel apart.
template <typename T, int kIndex = 0>
__device__ __forceinline__ T& BlockShared() {
#ifdef __CUDACC__
  __shared__ T object;
  return object;
#else
  return *static_cast<T*>(cuda_emulator::SharedMemory(kIndex, sizeof(T)));
#endif
}

// The memory whose size the launch gave; 16-byte aligned.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
#ifdef __CUDACC__
  extern __shared__ uint4 dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
#else
  return static_cast<T*>(cuda_emulator::DynamicShared());
#endif
}

// Runs kernel(args...) on the grid; nothing for an empty one. Errors stay with the device (LastError of kernels.h).
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, Stream stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef __CUDACC__
  if (shared_bytes > kPlainSharedBytes) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  }
  kernel<<<grid, block, shared_bytes, reinterpret_cast<cudaStream_t>(stream)>>>(static_cast<Params>(args)...);
#else
  cuda_emulator::Enqueue(stream, [=] {
    cuda_emulator::RunGrid(grid, block, shared_bytes, [&] { kernel(static_cast<Params>(args)...); });
  });
#endif
}

inline unsigned CeilDiv(int64_t n, int64_t by) { return static_cast<unsigned>((n + by - 1) / by); }

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DEVICE_CUH_
