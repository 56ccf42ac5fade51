// What the emulated device says of itself (DescribeDevice of device_memory.h).
#ifndef BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_
#define BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_

namespace baton::cuda_emulator {

// From now on; 0, as at first: none, it is an emulator.
void SetComputeCapability(int compute_capability);
// Of one device alone: others keep the above. -1: of none.
void SetOddDevice(int device, int compute_capability);
// How many devices there are from now on; at first 8, the most there can be.
inline constexpr int kMaxDevices = 8;
void SetNumDevices(int num_devices);

// Between them, for copies that reach several devices' memory (collectives.cc).
void OpenAllMemory();
void CloseAllMemory();

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_HOST_MEMORY_H_
