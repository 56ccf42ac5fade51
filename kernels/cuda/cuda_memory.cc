#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {
namespace {

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream stream) {
  if (bytes == 0) return absl::OkStatus();
  const absl::Status status = ToStatus(cudaMemcpyAsync(to, from, bytes, kind, stream), "copying to or from the GPU");
  return status.ok() ? Synchronize(stream) : status;
}

}  // namespace

absl::StatusOr<DeviceInfo> DescribeDevice() {
  int device = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "looking for a GPU"); !status.ok()) return status;
  cudaDeviceProp properties;
  if (absl::Status status = ToStatus(cudaGetDeviceProperties(&properties, device), "asking the GPU what it is");
      !status.ok()) {
    return status;
  }
  int kilohertz = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device) != cudaSuccess) kilohertz = 0;
  return DeviceInfo{.name = properties.name,
                    .compute_capability = properties.major * 10 + properties.minor,
                    .memory_bytes = properties.totalGlobalMem,
                    // Two transfers a clock.
                    .memory_bytes_per_second = 2e3 * kilohertz * properties.memoryBusWidth / 8,
                    .shared_bytes_per_block = properties.sharedMemPerBlockOptin};
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  DeviceMemory memory;
  const absl::Status status =
      ToStatus(cudaMalloc(&memory.data_, bytes > 0 ? bytes : 1), absl::StrCat("allocating ", bytes, " bytes on the GPU"));
  if (!status.ok()) return status;
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

absl::Status CopyWithinDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

absl::Status ShareHostMemory(void* memory, size_t bytes) {
  absl::Status s = ToStatus(cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "pinning host memory for the GPU");
  if (!s.ok()) return s;
  void* address = nullptr;
  s = ToStatus(cudaHostGetDevicePointer(&address, memory, 0), "the GPU's address of host memory");
  if (s.ok() && address != memory) s = absl::FailedPreconditionError("the GPU sees host memory at other addresses");
  if (!s.ok()) cudaHostUnregister(memory);
  return s;
}
void UnshareHostMemory(void* memory) { cudaHostUnregister(memory); }
bool KernelsMayUse(const void*) { return true; }

absl::Status Synchronize(Stream stream) {
  const absl::Status launched = ToStatus(cudaGetLastError(), "launching a kernel");
  return launched.ok() ? ToStatus(cudaStreamSynchronize(stream), "running on the GPU") : launched;
}

}  // namespace baton::kernels::cuda
