// A RopeTable of all positions in a device's memory, so that a pass sends none: memory for `max_positions` is taken at once,
// values go there when a sequence first comes so far. (On the host rope.h's are computed for the rows at hand.)
//
// Thread contract: the device's.
#ifndef BATON_MODEL_DEVICE_ANGLES_H_
#define BATON_MODEL_DEVICE_ANGLES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/device_space.h"
#include "model/rope.h"

namespace baton::model {

class DeviceAngles {
 public:
  // Both outlive it. Errors: DeviceSpace::Allocate's.
  static absl::StatusOr<DeviceAngles> Create(const RopeAngles* angles, kernels::DeviceSpace* device, int max_positions);
  static uint64_t BytesFor(int num_pairs, int max_positions) { return uint64_t{2} * sizeof(float) * num_pairs * max_positions; }
  DeviceAngles() = default;  // of no position

  // The table holds positions [0, end) from here on; end <= max_positions.
  void Extend(int end);
  // [max_positions, num_pairs] each.
  const float* cos() const { return static_cast<const float*>(memory_.data()); }
  const float* sin() const { return cos() + static_cast<int64_t>(max_positions_) * angles_->num_pairs(); }
  uint64_t memory_bytes() const { return angles_ == nullptr ? 0 : BytesFor(angles_->num_pairs(), max_positions_); }

 private:
  const RopeAngles* angles_ = nullptr;
  kernels::DeviceSpace* device_ = nullptr;
  kernels::DeviceArray memory_;
  int max_positions_ = 0, filled_ = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_ANGLES_H_
