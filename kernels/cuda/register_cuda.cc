// Makes `isa: cuda` available to the program that links this.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {
namespace {

absl::StatusOr<DeviceBackend> Create(NumericsClass numerics) {
  if (numerics != NumericsClass::kF32 && numerics != NumericsClass::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat("isa is cuda, whose kernels compute in f32 or bf16, and numerics is ",
                                                   Name(numerics), "; set numerics to f32 or bf16"));
  }
  absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return device.status();
  auto backend = std::make_unique<CudaBackend>(numerics);
  DeviceSpace* const space = backend.get();
  return DeviceBackend{std::move(backend), space};
}

[[maybe_unused]] const bool registered = RegisterDeviceBackend("cuda", &Create);

}  // namespace
}  // namespace baton::kernels::cuda
