// The blocks of a pool in a device's memory, for backends whose kernels cannot read the host's. Kernels read and write
// them here; the pool's own memory is where transports read and write them. Both have the same layout and block ids.
//
// A block lives on either side or on both, which is kept for each block and life (generation):
//
//   allocated, cloned   on the device
//   written by kernels  on the device; a copy on the host from before is none any more
//   Download            on both: what is exported
//   fetched             on the host, until adopted (Upload): on both; or, by a lane, on the device
//
// Copies go beside the backend's calls (kernels::DeviceSpace). Whoever begins one holds the block until it is done, so
// that neither side gets another tenant meanwhile.
//
// Thread contract: the backend's (the engine thread).
#ifndef BATON_KVCACHE_DEVICE_BLOCKS_H_
#define BATON_KVCACHE_DEVICE_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device_space.h"
#include "kvcache/block_pool.h"

namespace baton::kvcache {

class DeviceBlocks {
 public:
  // Room for as many blocks as `host` has, whose memory is pinned. Neither is owned; both outlive this.
  // RESOURCE_EXHAUSTED with the arithmetic when the device, or the host for pinned memory, has no room.
  static absl::StatusOr<std::unique_ptr<DeviceBlocks>> Create(kernels::DeviceSpace* space, const kernels::KvView& host,
                                                              int64_t num_blocks);
  ~DeviceBlocks();  // waits for copies
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  // Device memory: for kernels.
  const kernels::KvView& view() const { return view_; }

  // A block begins its life with zeros.
  void Clear(BlockHandle block);
  // A block begins its life with the bytes of another one, which is on the device.
  void Clone(BlockHandle to, BlockId from);
  // Kernels are about to write the chunk's rows.
  void Write(const kernels::SequenceChunk& chunk);

  // A lane has written the block, whole (BlockLease::SetOnDevice).
  void Written(BlockHandle block) { sides_[block.id] = {block.generation, 0}; }
  // What the backend's calls so far write is in the blocks once everything up to latest() is done.
  void Await() { latest_ = space_->StartDownloads({}); }

  // Blocks that were copied since the pool began.
  struct Copied {
    int64_t to_host = 0, to_device = 0;
  };
  const Copied& copied() const { return copied_; }

  // Begin to copy those of the blocks that are not on that side yet. Kernels may use them, or transports read them,
  // once everything up to latest() is done.
  void Upload(std::span<const BlockHandle> blocks);
  void Download(std::span<const BlockHandle> blocks);
  kernels::DeviceSpace::CopyId latest() const { return latest_; }  // copy that was begun; 0: none ever
  bool Done(kernels::DeviceSpace::CopyId copy) { return space_->CopiesDone(copy); }
  void Wait(kernels::DeviceSpace::CopyId copy) { space_->WaitCopies(copy); }

 private:
  // In which life the block is there; 0: in none.
  struct Sides {
    uint64_t device = 0, host = 0;
  };

  DeviceBlocks(kernels::DeviceSpace* space, const kernels::KvView& host, int64_t num_blocks)
      : space_(space), host_(host), sides_(static_cast<size_t>(num_blocks)) {}

  kernels::DeviceSpace* const space_;
  const kernels::KvView host_;
  kernels::KvView view_;
  kernels::DeviceArray memory_;
  bool pinned_ = false;
  std::vector<Sides> sides_;                        // [block id]
  std::vector<kernels::DeviceSpace::Copy> copies_;  // of one call
  kernels::DeviceSpace::CopyId latest_ = 0;
  Copied copied_;
};

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_DEVICE_BLOCKS_H_
