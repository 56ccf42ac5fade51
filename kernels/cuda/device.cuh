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
#include "kernels/cuda/emulator/tensor.h"
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

// The following need sm_80: below it they trap, and whoever uses them does not run there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define BATON_PTX(...) __trap()
#else
#define BATON_PTX(...) asm volatile(__VA_ARGS__)
#endif

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

// Copies 16 bytes of global to shared memory in the background, or zeros if not `inside` (then nothing is read). Both
// aligned to 16. A thread waits for its own copies only: a barrier has to follow.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool inside) {
#ifdef __CUDACC__
  BATON_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
            "r"(inside ? 16 : 0)
            : "memory");
#else
  cuda_emulator::CopyAsync16(shared, inside ? global : nullptr);
#endif
}

// Closes the group of copies that this thread began since the last call; an empty group counts.
__device__ __forceinline__ void CommitCopies() {
#ifdef __CUDACC__
  BATON_PTX("cp.async.commit_group;" ::: "memory");
#else
  cuda_emulator::CommitCopies();
#endif
}

// Waits for all groups of this thread but the newest kPending.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
#ifdef __CUDACC__
  BATON_PTX("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  cuda_emulator::WaitForCopies(kPending);
#endif
}

// Four 8 x 8 matrices of 16 bits from shared memory. Lane l names row l % 8 of matrix l / 8 (16 bytes, aligned); it gets,
// of row l / 4 of each matrix, elements 2 * (l % 4) and the next. The whole warp calls it.
__device__ __forceinline__ void LoadMatrices(const void* row, uint32_t (&out)[4]) {
#ifdef __CUDACC__
  BATON_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
            : "r"(SharedAddress(row))
            : "memory");
#else
  cuda_emulator::LoadMatrices(row, out);
#endif
}

// The same of the matrices' columns: elements 2 * (l % 4) and the next of column l / 4.
__device__ __forceinline__ void LoadMatricesTransposed(const void* row, uint32_t (&out)[4]) {
#ifdef __CUDACC__
  BATON_PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
            : "r"(SharedAddress(row))
            : "memory");
#else
  cuda_emulator::LoadMatricesTransposed(row, out);
#endif
}

// d += a * b: a has 16 rows of 16 bf16, b 16 rows of 8, d 16 rows of 8 f32. emulator/tensor.cc says which of them a lane
// holds, and LoadMatrices gives them so: a from [0, 8) x [0, 8), [8, 16) x [0, 8), [0, 8) x [8, 16), [8, 16) x [8, 16);
// b from its columns' inputs [0, 8) and [8, 16). The order of the 16 products in a sum is the device's own. The whole
// warp calls it.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  BATON_PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_emulator::MultiplyAdd(d, a, b0, b1);
#endif
}

// The same with halves.
__device__ __forceinline__ void MultiplyAddHalf(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  BATON_PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_emulator::MultiplyAddHalf(d, a, b0, b1);
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
