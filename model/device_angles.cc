#include "model/device_angles.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace baton::model {

absl::StatusOr<DeviceAngles> DeviceAngles::Create(const RopeAngles* angles, kernels::DeviceSpace* device,
                                                  int max_positions) {
  DeviceAngles table;
  absl::StatusOr<kernels::DeviceArray> memory =
      kernels::DeviceArray::Allocate(device, BytesFor(angles->num_pairs(), max_positions));
  if (!memory.ok()) return memory.status();
  table.memory_ = *std::move(memory);
  table.angles_ = angles;
  table.device_ = device;
  table.max_positions_ = max_positions;
  return table;
}

void DeviceAngles::Extend(int end) {
  constexpr int kStep = 256;  // positions: decode comes here once in so many tokens
  if (angles_ == nullptr || end <= filled_) return;
  end = std::min((end + kStep - 1) / kStep * kStep, max_positions_);
  std::vector<int32_t> positions(static_cast<size_t>(end - filled_));
  std::iota(positions.begin(), positions.end(), filled_);
  const size_t pairs = static_cast<size_t>(angles_->num_pairs());
  std::vector<float> cos_values(positions.size() * pairs), sin_values(positions.size() * pairs);
  angles_->Fill(positions, cos_values.data(), sin_values.data());
  const size_t at = static_cast<size_t>(filled_) * pairs, bytes = cos_values.size() * sizeof(float);
  device_->Upload(const_cast<float*>(cos()) + at, cos_values.data(), bytes);
  device_->Upload(const_cast<float*>(sin()) + at, sin_values.data(), bytes);
  filled_ = end;
}

}  // namespace baton::model
