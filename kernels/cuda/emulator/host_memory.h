// What the emulated device says of itself (DescribeDevice of device_memory.h).
#ifndef BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_
#define BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_

namespace baton::cuda_emulator {

// From now on; 0, as at first: none, it is an emulator.
void SetComputeCapability(int compute_capability);

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_
