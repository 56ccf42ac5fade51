// DeviceLane on a stream of its own.
#ifndef BATON_KERNELS_CUDA_CUDA_LANE_H_
#define BATON_KERNELS_CUDA_CUDA_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cuda/device_memory.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

class CudaLane final : public DeviceLane {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create();
  ~CudaLane() override;
  absl::Status Copy(void* to, const void* from, size_t bytes) override;
  absl::Status Wait() override;
  absl::Status Checksums(std::span<const void* const> data, size_t bytes, std::span<uint64_t> sums) override;
  bool CanSum(size_t bytes) const override { return bytes > 240 && bytes % 8 == 0; }

 private:
  CudaLane() = default;
  OwnedStream stream_;
  DeviceMemory sums_;
  PinnedMemory host_sums_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CUDA_LANE_H_
