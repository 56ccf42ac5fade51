// The instructions of tensor cores, a warp's or a warpgroup's, on the registers that PTX says each lane holds: a kernel
// that has an element in another lane or register than it should gives another product.
//
// Sums here run in ascending order, one rounding for each product; a GPU's order within one instruction is not
// documented.
#ifndef BATON_KERNELS_CUDA_EMULATOR_TENSOR_H_
#define BATON_KERNELS_CUDA_EMULATOR_TENSOR_H_

#include <cstdint>

namespace baton::cuda_emulator {

// As of the same names in device.cuh.
void LoadMatrices(const void* row, uint32_t (&out)[4]);
void LoadMatricesTransposed(const void* row, uint32_t (&out)[4]);
void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void MultiplyAddHalf(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

// As in wgmma.cuh; async_proxy.h says when things happen. `d` (n / 2) and `a` are read and written until the wait.
void ProxyFence();
uint32_t SharedAddress(const void* shared);
void WgmmaFence();
void Wgmma(float* d, int n, const uint32_t (&a)[4], uint64_t b);
void WgmmaCommit();
void WgmmaWait(int pending);
// Whether the emulated device has them; it does at first.
bool HasWgmma();
void SetHasWgmma(bool has);

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_TENSOR_H_
