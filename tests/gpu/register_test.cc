// What a worker says of its device, so that it pairs with its like only.
#include <gtest/gtest.h>

#include <tuple>

#include "kernels/cuda/emulator/host_memory.h"
#include "kernels/cuda/emulator/tensor.h"
#include "kernels/device_space.h"

namespace baton::kernels {
namespace {

TEST(RegisterCudaTest, TensorCoresOfOtherArchitecturesAreOtherKindsAndF32IsOne) {
  for (const auto& [compute_capability, wgmma, kind] : {std::tuple{80, false, "sm_80"}, {90, false, "sm_90"},
                                                        {90, true, "sm_90a"}, {120, false, "sm_120"}, {0, true, "emulator"}}) {
    cuda_emulator::SetComputeCapability(compute_capability);
    cuda_emulator::SetHasWgmma(wgmma);
    EXPECT_EQ(CreateDeviceBackend("cuda", NumericsClass::kBf16).value().kind, kind);
    EXPECT_EQ(CreateDeviceBackend("cuda", NumericsClass::kF32).value().kind, "");
  }
  const DeviceBackend split = CreateDeviceBackend("cuda", NumericsClass::kBf16, {.ranks = 4, .slices = 8}).value();
  EXPECT_EQ(split.kind, "emulator");
  EXPECT_EQ(split.backend->name(), "cuda/tp4");
  EXPECT_EQ(CreateDeviceBackend("cuda", NumericsClass::kF32, {.ranks = 1, .slices = 8}).value().backend->name(), "cuda");
  EXPECT_EQ(CreateDeviceBackend("cuda", NumericsClass::kF32, {.ranks = 8, .slices = 4}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateDeviceBackend("cuda", NumericsClass::kInt).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateDeviceBackend("cuda-fp8", NumericsClass::kBf16).value().kind, "emulator");
  EXPECT_EQ(CreateDeviceBackend("cuda-fp8", NumericsClass::kF32).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels
