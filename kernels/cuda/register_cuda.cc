// Makes `isa: cuda` available to the program that links this, also with weights in FP8 (`numerics: fp8`).
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/tensor_parallel.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {
namespace {

template <WeightStorage kStorage>
absl::StatusOr<DeviceBackend> Create(NumericsClass numerics, const TensorParallel& split) {
  if (numerics != NumericsClass::kBf16 && (numerics != NumericsClass::kF32 || kStorage == WeightStorage::kFp8)) {
    return absl::InvalidArgumentError(absl::StrCat("isa is cuda, whose kernels compute in f32 or bf16, and numerics is ",
                                                   Name(numerics), "; set numerics to f32, bf16 or fp8"));
  }
  absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return device.status();
  DeviceBackend made;
  if (split.ranks == 1 && split.slices == 1) {
    auto backend = std::make_unique<CudaBackend>(numerics, /*graphs=*/true, kStorage);
    made.space = backend.get();
    made.backend = std::move(backend);
  } else {
    absl::StatusOr<std::unique_ptr<TensorParallelBackend>> backend =
        TensorParallelBackend::Create(numerics, split, kStorage);
    if (!backend.ok()) return backend.status();
    made.space = backend->get();
    made.backend = *std::move(backend);
  }
  if (numerics == NumericsClass::kF32) return made;
  // How tensor cores add up a step's products is the architecture's own, and the instruction's.
  made.kind = device->compute_capability > 0
                  ? absl::StrCat("sm_", device->compute_capability, HasWgmma() ? "a" : "")
                  : device->name;
  return made;
}

[[maybe_unused]] const bool registered = RegisterDeviceBackend("cuda", &Create<WeightStorage::kOwnBits>);
[[maybe_unused]] const bool registered_fp8 = RegisterDeviceBackend("cuda-fp8", &Create<WeightStorage::kFp8>);

}  // namespace
}  // namespace baton::kernels::cuda
