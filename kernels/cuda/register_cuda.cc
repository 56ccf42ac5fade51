// Makes `isa: cuda` available to the program that links this.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {
namespace {

absl::StatusOr<DeviceBackend> Create() {
  absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return device.status();
  auto backend = std::make_unique<CudaBackend>();
  DeviceSpace* const space = backend.get();
  return DeviceBackend{std::move(backend), space};
}

[[maybe_unused]] const bool registered = RegisterDeviceBackend("cuda", &Create);

}  // namespace
}  // namespace baton::kernels::cuda
