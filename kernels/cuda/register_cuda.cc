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
  DeviceBackend made = {std::move(backend), space, ""};
  if (numerics == NumericsClass::kF32) return made;
  // How tensor cores add up a step's products is the architecture's own, and the instruction's.
  made.kind = device->compute_capability > 0
                  ? absl::StrCat("sm_", device->compute_capability, HasWgmma() ? "a" : "")
                  : device->name;
  return made;
}

[[maybe_unused]] const bool registered = RegisterDeviceBackend("cuda", &Create);

}  // namespace
}  // namespace baton::kernels::cuda
