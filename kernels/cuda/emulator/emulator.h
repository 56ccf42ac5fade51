// Runs CUDA kernels on the host, for tests: what kernels/cuda/*.cu uses of CUDA C++, no more.
//
// Each CUDA thread is a fiber on the calling host thread; blocks run one after the other. A fiber runs until it waits
// (barrier, warp operation) or ends, and the order in which those that can run do so comes from SetSchedule: a kernel
// that lacks a barrier gives other bits in some order, and a test that compares them shows it. So do shared memory that
// is read before it is written (it starts as NaN) or beyond its size (it is a heap block: the address sanitizer sees it).
// What CUDA leaves undefined ends the process with a message: threads waiting at different barriers, an ended lane in a
// warp operation, grids or blocks too large.
//
// A copy that a kernel does not wait for makes its target NaN at once and arrives when its thread waits, so that reading it too
// early, or overwriting what is still read, shows too. tensor.h has what tensor cores do, async_proxy.h warpgroup products,
// streams.h streams.
//
// Not emulated: memory ordering of threads that run at the same time, timing.
#ifndef BATON_KERNELS_CUDA_EMULATOR_EMULATOR_H_
#define BATON_KERNELS_CUDA_EMULATOR_EMULATOR_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace baton::cuda_emulator {

struct ThreadContext {
  uint3 thread_idx, block_idx;
  dim3 block_dim, grid_dim;
};
// Of the fiber that runs; only inside a kernel.
const ThreadContext& Current();

// kShuffled also lets warps get ahead of others as far as barriers let them.
enum class Order { kAscending, kDescending, kShuffled };
// How fibers and blocks take turns from now on; seed: of kShuffled.
void SetSchedule(Order order, uint32_t seed = 0);

// Called before and after each grid, on its thread; null: nothing. Set before grids run on other threads.
void SetAroundGrids(void (*before)(), void (*after)());

// Runs `kernel` for each thread of the grid.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

void SyncThreads();
// A barrier of the 128 threads of this one's warpgroup.
void SyncWarpgroup();
// Waits for the lanes of `mask`, which all call it.
void SyncWarp(uint32_t mask);
// Gives `value`'s 8 bytes to the warp and takes lane `source`'s, once all lanes of `mask` have given theirs.
uint64_t ExchangeInWarp(uint32_t mask, uint64_t value, unsigned source);
unsigned Lane();
// Runs all(lanes) once, when every lane of the warp is in a call with the same `all`; lanes[i] is what lane i gave.
using WarpFunction = void (*)(void* const* lanes);
void TogetherInWarp(WarpFunction all, void* lane);

// CopyAsync16, CommitCopies and WaitForCopies of device.cuh. from null: zeros.
void CopyAsync16(void* to, const void* from);
void CommitCopies();
void WaitForCopies(int pending);

// The block's shared memory number `index` of this many bytes: the same for all its threads.
void* SharedMemory(int index, size_t bytes);
void* DynamicShared();

template <typename T>
T Exchange(uint32_t mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = ExchangeInWarp(mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace baton::cuda_emulator

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define threadIdx (::baton::cuda_emulator::Current().thread_idx)
#define blockIdx (::baton::cuda_emulator::Current().block_idx)
#define blockDim (::baton::cuda_emulator::Current().block_dim)
#define gridDim (::baton::cuda_emulator::Current().grid_dim)

inline void __syncthreads() { ::baton::cuda_emulator::SyncThreads(); }
inline void __syncwarp(uint32_t mask = 0xffffffff) { ::baton::cuda_emulator::SyncWarp(mask); }
template <typename T>
T __shfl_sync(uint32_t mask, T value, int lane) {
  return ::baton::cuda_emulator::Exchange(mask, value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return ::baton::cuda_emulator::Exchange(mask, value, (::baton::cuda_emulator::Lane() ^ bits) & 31);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned by) {
  const unsigned lane = ::baton::cuda_emulator::Lane();
  return ::baton::cuda_emulator::Exchange(mask, value, lane + by < 32 ? lane + by : lane);
}

inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Fibers do not interrupt one another, so these are atomic as they stand.
template <typename T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = old + value;
  return old;
}
template <typename T>
T atomicMax(T* at, T value) {
  const T old = *at;
  if (value > old) *at = value;
  return old;
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}

#endif  // BATON_KERNELS_CUDA_EMULATOR_EMULATOR_H_
