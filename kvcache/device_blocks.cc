#include "kvcache/device_blocks.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::kvcache {

absl::StatusOr<std::unique_ptr<DeviceBlocks>> DeviceBlocks::Create(kernels::DeviceSpace* space,
                                                                   const kernels::KvView& host, int64_t num_blocks) {
  const size_t bytes = static_cast<size_t>(num_blocks) * host.layout.block_bytes();
  const auto no_room = [&](const absl::Status& why) {
    return absl::Status(why.code(),
                        absl::StrCat(num_blocks, " KV blocks of ", host.layout.block_bytes(), " bytes need ", bytes,
                                     " bytes on the device and as many of pinned memory "
                                     "on the host: ",
                                     why.message(), "; lower kv_memory_mib"));
  };
  std::unique_ptr<DeviceBlocks> blocks(new DeviceBlocks(space, host, num_blocks));
  absl::StatusOr<kernels::DeviceArray> memory = kernels::DeviceArray::AllocateBlocks(space, host.layout, num_blocks);
  if (!memory.ok()) return no_room(memory.status());
  blocks->memory_ = *std::move(memory);
  blocks->view_ = {static_cast<std::byte*>(blocks->memory_.data()), host.layout};
  if (absl::Status pinned = space->Pin(host.base, bytes); !pinned.ok()) return no_room(pinned);
  blocks->pinned_ = true;
  return blocks;
}

DeviceBlocks::~DeviceBlocks() {
  space_->WaitCopies(latest_);
  if (pinned_) space_->Unpin(host_.base);
}

void DeviceBlocks::Clear(BlockHandle block) {
  space_->Clear(view_.block(block.id), view_.layout.block_bytes());
  sides_[block.id].device = block.generation;
}

void DeviceBlocks::Clone(BlockHandle to, BlockId from) {
  space_->CopyWithin(view_.block(to.id), view_.block(from), view_.layout.block_bytes());
  sides_[to.id].device = to.generation;
}

void DeviceBlocks::Write(const kernels::SequenceChunk& chunk) {
  const int block_size = view_.layout.block_size;
  const int end = chunk.context_len + chunk.num_rows;
  for (int b = chunk.context_len / block_size; b * block_size < end; ++b) sides_[chunk.block_table[b]].host = 0;
}

void DeviceBlocks::Upload(std::span<const BlockHandle> blocks) {
  copies_.clear();
  for (const BlockHandle& block : blocks) {
    Sides& sides = sides_[block.id];
    if (sides.device == block.generation) continue;
    sides = {block.generation, block.generation};
    copies_.push_back({view_.block(block.id), host_.block(block.id), view_.layout.block_bytes()});
  }
  copied_.to_device += static_cast<int64_t>(copies_.size());
  if (!copies_.empty()) latest_ = space_->StartUploads(copies_);
}

void DeviceBlocks::Download(std::span<const BlockHandle> blocks) {
  copies_.clear();
  for (const BlockHandle& block : blocks) {
    Sides& sides = sides_[block.id];
    if (sides.host == block.generation) continue;
    sides.host = block.generation;
    copies_.push_back({host_.block(block.id), view_.block(block.id), view_.layout.block_bytes()});
  }
  copied_.to_host += static_cast<int64_t>(copies_.size());
  if (!copies_.empty()) latest_ = space_->StartDownloads(copies_);
}

}  // namespace baton::kvcache
