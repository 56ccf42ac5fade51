// Products of a warpgroup (four warps whose first is a multiple of four) on Hopper's tensor cores, wgmma.mma_async of the
// PTX ISA. Only sm_90a has them: code for others traps (HasWgmma of kernels.h).
//
// They run behind the warpgroup's back and read shared memory through another proxy than its threads. So, in order:
// whoever brought operands to shared memory waits for its copies and calls ProxyFence; a barrier; WgmmaFence once
// registers are written; Wgmma; WgmmaCommit; and only behind WgmmaWait are accumulators read, registers of a written or
// shared memory reused. All of a warpgroup's threads make the same calls. emulator/async_proxy.h finds who does not.
#ifndef BATON_KERNELS_CUDA_WGMMA_CUH_
#define BATON_KERNELS_CUDA_WGMMA_CUH_

#include "kernels/cuda/device.cuh"

namespace baton::kernels::cuda {

inline constexpr int kWarpgroup = 128;     // threads
inline constexpr int kWarpgroupRows = 64;  // of a product's a; each warp has 16

// nvcc says so where the instructions are: when it compiles for sm_90a.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BATON_HAS_WGMMA 1
#endif

#if defined(__CUDA_ARCH__) && !defined(BATON_HAS_WGMMA)
#define BATON_WGMMA_PTX(...) __trap()
#else
#define BATON_WGMMA_PTX(...) asm volatile(__VA_ARGS__)
#endif

// What this thread wrote to shared memory (asynchronous copies that it has waited for too) is there for products that
// begin behind the next barrier.
__device__ __forceinline__ void ProxyFence() {
#ifdef __CUDACC__
  BATON_WGMMA_PTX("fence.proxy.async.shared::cta;" ::: "memory");
#else
  cuda_emulator::ProxyFence();
#endif
}

// What this thread wrote to registers is there for the products that follow.
__device__ __forceinline__ void WgmmaFence() {
#ifdef __CUDACC__
  BATON_WGMMA_PTX("wgmma.fence.sync.aligned;" ::: "memory");
#else
  cuda_emulator::WgmmaFence();
#endif
}

// Closes the group of products since the last call.
__device__ __forceinline__ void WgmmaCommit() {
#ifdef __CUDACC__
  BATON_WGMMA_PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  cuda_emulator::WgmmaCommit();
#endif
}

// Waits for all groups but the newest kPending.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
#ifdef __CUDACC__
  BATON_WGMMA_PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#else
  cuda_emulator::WgmmaWait(kPending);
#endif
}

// Behind WgmmaWait<0>: keeps the compiler from reading accumulators before it.
template <int kSize>
__device__ __forceinline__ void HoldAccumulators(float (&d)[kSize]) {
#ifdef __CUDACC__
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
#else
  (void)d;
#endif
}

// A barrier of this thread's warpgroup, which is the block's number `warpgroup` (0 to 14: __syncthreads has one).
__device__ __forceinline__ void SyncWarpgroup(int warpgroup) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(warpgroup + 1), "n"(kWarpgroup) : "memory");
#else
  (void)warpgroup;
  cuda_emulator::SyncWarpgroup();
#endif
}

// Descriptor of 16 inputs of some octets of rows in shared memory, without swizzling: octet o's inputs [8h, 8h + 8) are
// 128 consecutive bytes (8 rows of 16) from first + o * octet_bytes + h * half_bytes on. All are multiples of 16.
// PTX ISA, "Matrix Descriptor Format" of wgmma: K-major, so that the leading offset goes from half to half, the stride
// offset from octet to octet.
__device__ __forceinline__ uint64_t MatrixDescriptor(const void* first, uint32_t half_bytes, uint32_t octet_bytes) {
#ifdef __CUDACC__
  const uint32_t address = SharedAddress(first);
#else
  const uint32_t address = cuda_emulator::SharedAddress(first);
#endif
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{half_bytes >> 4} << 16 | uint64_t{octet_bytes >> 4} << 32;
}

// The operands' numbers and constraints, of asm's. d is [kN / 2].
#define BATON_TEN(t)                                                                                               \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define BATON_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define BATON_D16(i) BATON_D4(i), BATON_D4((i) + 4), BATON_D4((i) + 8), BATON_D4((i) + 12)
#define BATON_D32(i) BATON_D16(i), BATON_D16((i) + 16)
#define BATON_WGMMA_OF(n, sums, a0, a1, a2, a3, b, ...)                                                           \
  BATON_WGMMA_PTX("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                                                   \
                  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" #a0 ",%" #a1 ",%" #a2  \
                  ",%" #a3 "}, %" #b ", add, 1, 1, 0;\n}"                                                         \
                  : __VA_ARGS__                                                                                    \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor))

// Begins d += a * b: a has 64 rows of 16 bf16, b (16 inputs of kN rows by its descriptor) comes from shared memory, d
// has 64 by kN f32. Each warp holds 16 rows of a and d, a as for MultiplyAdd; d[4 * o + i] are what MultiplyAdd's d[i] is for
// octet o of b. The order of the 16 products in a sum is the device's own.
template <int kN>
__device__ __forceinline__ void Wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_descriptor) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 192);
#ifdef __CUDACC__
  if constexpr (kN == 8) BATON_WGMMA_OF(8, "%0,%1,%2,%3", 4, 5, 6, 7, 8, BATON_D4(0));
  if constexpr (kN == 16) BATON_WGMMA_OF(16, "%0,%1,%2,%3,%4,%5,%6,%7", 8, 9, 10, 11, 12, BATON_D4(0), BATON_D4(4));
  if constexpr (kN == 32) {
    BATON_WGMMA_OF(32, BATON_TEN() ",%10,%11,%12,%13,%14,%15", 16, 17, 18, 19, 20, BATON_D16(0));
  }
  if constexpr (kN == 64) {
    BATON_WGMMA_OF(64, BATON_TEN() "," BATON_TEN(1) "," BATON_TEN(2) ",%30,%31", 32, 33, 34, 35, 36, BATON_D32(0));
  }
  if constexpr (kN == 128) {
    BATON_WGMMA_OF(128,
                   BATON_TEN() "," BATON_TEN(1) "," BATON_TEN(2) "," BATON_TEN(3) "," BATON_TEN(4) "," BATON_TEN(5)
                   ",%60,%61,%62,%63",
                   64, 65, 66, 67, 68, BATON_D32(0), BATON_D32(32));
  }
  if constexpr (kN == 192) {
    BATON_WGMMA_OF(192,
                   BATON_TEN() "," BATON_TEN(1) "," BATON_TEN(2) "," BATON_TEN(3) "," BATON_TEN(4) "," BATON_TEN(5)
                   "," BATON_TEN(6) "," BATON_TEN(7) "," BATON_TEN(8) ",%90,%91,%92,%93,%94,%95",
                   96, 97, 98, 99, 100, BATON_D32(0), BATON_D32(32), BATON_D32(64));
  }
#else
  cuda_emulator::Wgmma(d, kN, a, b_descriptor);
#endif
}

#undef BATON_TEN
#undef BATON_D4
#undef BATON_D16
#undef BATON_D32
#undef BATON_WGMMA_OF

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_WGMMA_CUH_
