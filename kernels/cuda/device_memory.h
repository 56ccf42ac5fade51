// Memory of the device, and waiting for it: the little that host code needs of CUDA's runtime. Two implementations, chosen
// when linking: cuda_memory.cc (--config=cuda) and emulator/host_memory.cc, where it is a region that
// host code cannot touch.
#ifndef BATON_KERNELS_CUDA_DEVICE_MEMORY_H_
#define BATON_KERNELS_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int compute_capability = 0;           // 90 is 9.0
  uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;   // by clock and bus width; 0 if not told
  uint64_t shared_bytes_per_block = 0;  // at most, for a kernel that asks for it
};
// UNAVAILABLE when there is none.
absl::StatusOr<DeviceInfo> DescribeDevice();

// Owns an allocation, 256-byte aligned, uninitialised.
class DeviceMemory {
 public:
  // RESOURCE_EXHAUSTED when the device has no room, UNAVAILABLE when there is no device.
  static absl::StatusOr<DeviceMemory> Allocate(size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Returns when `from` may be reused; what was launched on the stream before is done first. INTERNAL with CUDA's message.
absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream);
absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream stream);
absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream stream);
// Lets kernels use host memory at its own address. FAILED_PRECONDITION when the device has another address for it.
absl::Status ShareHostMemory(void* memory, size_t bytes);
void UnshareHostMemory(void* memory);
// False: surely memory that a kernel must not be given (the emulator knows its own; CUDA is not asked, and says true).
bool KernelsMayUse(const void* memory);
// Waits for all that was launched on the stream. INTERNAL with CUDA's message if any of it, or a launch, failed.
absl::Status Synchronize(Stream stream);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DEVICE_MEMORY_H_
