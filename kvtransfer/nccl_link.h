// What both ends of an NCCL link share: how the staging memory is divided, and how often NCCL is asked.
#ifndef BATON_KVTRANSFER_NCCL_LINK_H_
#define BATON_KVTRANSFER_NCCL_LINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "kernels/device_space.h"
#include "kvtransfer/block_check.h"
#include "kvtransfer/event_loop.h"
#include "kvtransfer/nccl_comm.h"

namespace baton::kvtransfer {

// A group uses one slot of the staging memory, slots in turn; so at most kNcclSlots groups are under way on a link.
inline constexpr size_t kNcclSlots = 2;
inline constexpr int kMaxNcclParts = 64;  // of a group
inline size_t NcclSlotBytes(size_t block_bytes) { return std::max<size_t>(4 << 20, PieceBytes(block_bytes)); }

// For one thread of a transport; null: blocks of this size go by the host.
inline absl::StatusOr<std::unique_ptr<kernels::DeviceLane>> LaneFor(kernels::DeviceSpace* device, size_t block_bytes) {
  std::unique_ptr<kernels::DeviceLane> none;
  if (device == nullptr) return none;
  absl::StatusOr<std::unique_ptr<kernels::DeviceLane>> lane = device->CreateLane();
  if (lane.ok() && *lane != nullptr && !(*lane)->CanSum(block_bytes)) return none;
  return lane;
}

// The communicator of a link with its groups under way. `Group` is what the owner remembers of one.
template <typename Group>
struct NcclPipe {
  struct Flight {
    uint64_t number = 0;  // NcclComm's
    size_t offset = 0;    // of its slot
    absl::Time posted;
    Group group;
  };

  std::unique_ptr<NcclComm> comm;
  size_t slot_bytes = 0;
  bool made = false;
  absl::Time made_by = absl::InfiniteFuture();
  std::deque<Flight> flights;
  uint64_t next_slot = 0;
  absl::Duration pause;  // between looks

  bool HasRoom() const { return flights.size() < kNcclSlots; }
  size_t NextOffset() const { return next_slot % kNcclSlots * slot_bytes; }
  void Posted(uint64_t number, Group group, absl::Time now) {
    flights.push_back({number, NextOffset(), now, std::move(group)});
    ++next_slot;
    pause = kMinPause;
  }
  // True: settled, so that groups may be posted. Errors: broken, or late.
  absl::StatusOr<bool> Look(absl::Time now, absl::Duration group_timeout) {
    absl::StatusOr<bool> settled = comm->Settled();
    if (!settled.ok()) return settled;
    made = made || *settled;
    if (!made && now >= made_by) return absl::UnavailableError("the communicator was not made in time");
    if (!flights.empty() && now >= flights.front().posted + group_timeout) {
      return absl::UnavailableError("a group of NCCL does not complete: the peer is gone or stuck");
    }
    return settled;
  }
  // Something is expected of NCCL.
  bool waiting() const { return comm != nullptr && (!made || !flights.empty()); }
  void Progressed() { pause = kMinPause; }
  absl::Time NextLook(absl::Time now) {
    pause = std::clamp(pause * 2, kMinPause, kMaxPause);
    return now + pause;
  }

  static constexpr absl::Duration kMinPause = absl::Microseconds(20);
  static constexpr absl::Duration kMaxPause = absl::Milliseconds(2);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_LINK_H_
