// device_memory.h where the device is the emulator.
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {

absl::StatusOr<DeviceInfo> DescribeDevice() { return DeviceInfo{.name = "emulator"}; }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  DeviceMemory memory;
  const size_t whole = (bytes + 255) / 256 * 256;
  memory.data_ = std::aligned_alloc(256, whole > 0 ? whole : 256);
  if (memory.data_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  std::memset(memory.data_, 0xff, bytes);
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() { std::free(data_); }

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}
absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}
absl::Status Synchronize(Stream) { return absl::OkStatus(); }

}  // namespace baton::kernels::cuda
