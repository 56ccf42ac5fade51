#include "kvcache/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvcache/device_blocks.h"

namespace baton::kvcache {
namespace {

// A broken ownership rule is a bug of ours; going on would hand one request's KV to another.
[[noreturn]] void Die(const char* what, BlockId id) {
  std::fprintf(stderr, "kvcache: %s (block %d)\n", what, id);
  std::abort();
}

}  // namespace

absl::StatusOr<std::shared_ptr<BlockPool>> BlockPool::Create(const kernels::KvLayout& layout, int64_t num_blocks,
                                                             kernels::DeviceSpace* device) {
  if (layout.block_size <= 0 || layout.num_layers <= 0 || layout.num_kv_heads <= 0 || layout.head_dim <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("KV layout has a dimension that is not positive: block_size ",
                                                   layout.block_size, ", layers ", layout.num_layers, ", KV heads ",
                                                   layout.num_kv_heads, ", head_dim ", layout.head_dim));
  }
  size_t block_bytes = layout.element_bytes();
  size_t total = 0;
  bool overflow = num_blocks <= 0 || num_blocks > INT32_MAX;
  for (int factor : {2, layout.block_size, layout.num_layers, layout.num_kv_heads, layout.head_dim}) {
    overflow |= __builtin_mul_overflow(block_bytes, static_cast<size_t>(factor), &block_bytes);
  }
  overflow |= __builtin_mul_overflow(block_bytes, static_cast<size_t>(num_blocks), &total);
  if (overflow || total > (size_t{1} << 46)) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool of ", num_blocks, " blocks of ", block_bytes,
                                                   " bytes is not a size this process can address; give a number of "
                                                   "blocks between 1 and 2^31-1 that fits in memory"));
  }
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t mapped = (total + kHugePage - 1) / kHugePage * kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", total, " bytes for ", num_blocks,
                                                     " KV blocks of ", block_bytes, " bytes: ", std::strerror(errno),
                                                     "; lower the number of KV blocks"));
  }
  // Advice only: without huge pages everything still works.
  (void)madvise(base, mapped, MADV_HUGEPAGE);
  std::shared_ptr<BlockPool> pool(new BlockPool({static_cast<std::byte*>(base), layout}, num_blocks, mapped));
  if (device != nullptr) {
    absl::StatusOr<std::unique_ptr<DeviceBlocks>> blocks = DeviceBlocks::Create(device, pool->view_, num_blocks);
    if (!blocks.ok()) return blocks.status();
    pool->device_ = *std::move(blocks);
  }
  return pool;
}

BlockPool::BlockPool(const kernels::KvView& view, int64_t num_blocks, size_t mapped_bytes)
    : view_(view), num_blocks_(num_blocks), mapped_bytes_(mapped_bytes), blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (int64_t id = num_blocks - 1; id >= 0; --id) free_.push_back(static_cast<BlockId>(id));
  ledger_.total = ledger_.free = num_blocks;
  ledger_.block_bytes = static_cast<int64_t>(view.layout.block_bytes());
}

BlockPool::~BlockPool() {
  device_.reset();
  munmap(view_.base, mapped_bytes_);
}

const kernels::KvView& BlockPool::kernel_view() const { return device_ != nullptr ? device_->view() : view_; }

void BlockPool::DropDevice() { device_.reset(); }

std::byte* BlockLease::device_bytes(size_t i) const {
  DeviceBlocks* const device = pool_ != nullptr ? pool_->device() : nullptr;
  return device != nullptr ? device->view().block(blocks_[i].id) : nullptr;
}

Ledger BlockPool::ledger() const {
  MutexLock lock(&mu_);
  return ledger_;
}

int64_t BlockPool::Available() const {
  MutexLock lock(&mu_);
  return ledger_.free + ledger_.cached;
}

BlockState BlockPool::state(BlockId id) const {
  MutexLock lock(&mu_);
  return blocks_.at(id).state;
}

uint64_t BlockPool::generation(BlockId id) const {
  MutexLock lock(&mu_);
  return blocks_.at(id).generation;
}

bool BlockPool::IsCurrent(BlockHandle handle) const {
  MutexLock lock(&mu_);
  return handle.id >= 0 && handle.id < num_blocks_ && blocks_[handle.id].state != BlockState::kFree &&
         blocks_[handle.id].generation == handle.generation;
}

int32_t& BlockPool::Count(Block& block, Holder holder) {
  switch (holder) {
    case Holder::kActive: return block.active;
    case Holder::kLease: return block.leased;
    case Holder::kQuarantine: return block.quarantined;
  }
  std::abort();
}

BlockState BlockPool::StateOf(const Block& block) {
  if (block.quarantined > 0) return BlockState::kQuarantined;
  if (block.leased > 0) return BlockState::kLeased;
  if (block.active > 0) return BlockState::kActive;
  return block.indexed ? BlockState::kCached : BlockState::kFree;
}

int64_t& BlockPool::Counter(BlockState state) {
  switch (state) {
    case BlockState::kFree: return ledger_.free;
    case BlockState::kActive: return ledger_.active;
    case BlockState::kLeased: return ledger_.leased;
    case BlockState::kCached: return ledger_.cached;
    case BlockState::kQuarantined: return ledger_.quarantined;
  }
  std::abort();
}

void BlockPool::LruPush(BlockId id) {
  blocks_[id].lru_prev = lru_tail_;
  blocks_[id].lru_next = -1;
  (lru_tail_ >= 0 ? blocks_[lru_tail_].lru_next : lru_head_) = id;
  lru_tail_ = id;
}

void BlockPool::LruRemove(BlockId id) {
  const Block& block = blocks_[id];
  (block.lru_prev >= 0 ? blocks_[block.lru_prev].lru_next : lru_head_) = block.lru_next;
  (block.lru_next >= 0 ? blocks_[block.lru_next].lru_prev : lru_tail_) = block.lru_prev;
}

void BlockPool::Settle(BlockId id) {
  Block& block = blocks_[id];
  const BlockState before = block.state;
  const BlockState after = StateOf(block);
  if (before == after) return;
  if (before == BlockState::kCached) LruRemove(id);
  --Counter(before);
  ++Counter(after);
  block.state = after;
  if (after == BlockState::kCached) LruPush(id);
  if (after == BlockState::kFree) free_.push_back(id);
}

std::optional<std::vector<BlockHandle>> BlockPool::Take(int64_t num_blocks, Holder holder) {
  MutexLock lock(&mu_);
  if (num_blocks < 0 || num_blocks > static_cast<int64_t>(free_.size())) return std::nullopt;
  std::vector<BlockHandle> handles;
  handles.reserve(num_blocks);
  for (int64_t i = 0; i < num_blocks; ++i) {
    const BlockId id = free_.back();
    free_.pop_back();
    Block& block = blocks_[id];
    ++block.generation;
    ++Count(block, holder);
    Settle(id);
    handles.push_back({id, block.generation});
  }
  return handles;
}

void BlockPool::Hold(std::span<const BlockId> ids, Holder holder) {
  MutexLock lock(&mu_);
  for (BlockId id : ids) {
    if (blocks_[id].state == BlockState::kFree) Die("hold on a free block", id);
    ++Count(blocks_[id], holder);
    Settle(id);
  }
}

void BlockPool::Release(std::span<const BlockId> ids, Holder holder) {
  MutexLock lock(&mu_);
  for (size_t i = ids.size(); i-- > 0;) {
    if (Count(blocks_[ids[i]], holder)-- <= 0) Die("released more often than held", ids[i]);
    Settle(ids[i]);
  }
}

void BlockPool::ReleaseLease(std::span<const BlockHandle> blocks) {
  std::vector<BlockId> ids;
  ids.reserve(blocks.size());
  for (const BlockHandle& handle : blocks) ids.push_back(handle.id);
  Release(ids, Holder::kLease);
  NotifyRelease();
}

uint64_t BlockPool::QuarantineLease(std::span<const BlockHandle> blocks) {
  MutexLock lock(&mu_);
  Quarantined entry{next_token_++, {}};
  for (const BlockHandle& handle : blocks) {
    Block& block = blocks_[handle.id];
    ++block.quarantined;
    if (block.leased-- <= 0) Die("quarantined without a lease", handle.id);
    Settle(handle.id);
    entry.ids.push_back(handle.id);
  }
  quarantines_.push_back(std::move(entry));
  return quarantines_.back().token;
}

absl::Status BlockPool::EndQuarantine(uint64_t token) {
  std::vector<BlockId> ids;
  bool found = false;
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < quarantines_.size(); ++i) {
      if (quarantines_[i].token != token) continue;
      ids = std::move(quarantines_[i].ids);
      quarantines_.erase(quarantines_.begin() + i);
      found = true;
      break;
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat("no quarantine ", token, " (never started, or already ended)"));
  Release(ids, Holder::kQuarantine);
  NotifyRelease();
  return absl::OkStatus();
}

void BlockPool::NotifyRelease() const {
  if (on_release_) on_release_();
}

int BlockPool::Releasable(std::span<const BlockId> ids) const {
  MutexLock lock(&mu_);
  int count = 0;
  for (BlockId id : ids) {
    const Block& block = blocks_[id];
    count += block.active == 1 && block.leased == 0 && block.quarantined == 0;
  }
  return count;
}

std::optional<BlockTable> BlockPool::Allocate(int64_t num_blocks) {
  auto handles = Take(num_blocks, Holder::kActive);
  if (!handles) return std::nullopt;
  BlockTable table;
  table.pool_ = this;
  for (const BlockHandle& handle : *handles) {
    table.ids_.push_back(handle.id);
    if (device_ != nullptr) {
      device_->Clear(handle);
    } else if (handle.generation > 1) {
      // The first life has the kernel's fresh zero pages; touching them would defeat laziness.
      std::memset(bytes(handle.id), 0, view_.layout.block_bytes());
    }
  }
  return table;
}

std::optional<BlockLease> BlockPool::AllocateLease(int64_t num_blocks) {
  auto handles = Take(num_blocks, Holder::kLease);
  if (!handles) return std::nullopt;
  BlockLease lease;
  if (handles->empty()) return lease;
  lease.pool_ = shared_from_this();
  lease.blocks_ = *std::move(handles);
  return lease;
}

BlockLease BlockPool::Lease(const BlockTable& table, int num_blocks) {
  BlockLease lease;
  const std::span<const BlockId> ids = table.ids().first(num_blocks);
  if (ids.empty()) return lease;
  Hold(ids, Holder::kLease);
  lease.pool_ = shared_from_this();
  MutexLock lock(&mu_);
  for (BlockId id : ids) lease.blocks_.push_back({id, blocks_[id].generation});
  return lease;
}

std::optional<BlockLease> BlockPool::AllocateLeaseBehind(const BlockTable& prefix, int64_t num_blocks) {
  std::optional<BlockLease> room = AllocateLease(num_blocks);
  if (!room) return std::nullopt;
  BlockLease lease = Lease(prefix, prefix.size());
  lease.num_held_ = lease.blocks_.size();
  lease.Join(*std::move(room));
  return lease;
}

absl::StatusOr<BlockTable> BlockPool::Adopt(BlockLease&& lease) {
  if (lease.empty()) return absl::InvalidArgumentError("the KV lease is empty: reserve room before the fetch");
  if (lease.pool_.get() != this) return absl::InvalidArgumentError("the KV lease belongs to another engine's pool");
  if (!lease.Valid()) return absl::InvalidArgumentError("the KV lease names an earlier life of a block");
  BlockTable table;
  table.pool_ = this;
  {
    MutexLock lock(&mu_);
    for (const BlockHandle& handle : lease.blocks_) {
      Block& block = blocks_[handle.id];
      ++block.active;
      if (block.leased-- <= 0) Die("adopted without a lease", handle.id);
      Settle(handle.id);
      table.ids_.push_back(handle.id);
    }
  }
  if (device_ != nullptr) {
    for (size_t i = 0; i < lease.blocks_.size(); ++i) {
      if (lease.on_device(i)) device_->Written(lease.blocks_[i]);
    }
    device_->Upload(lease.blocks_);
  }
  lease.on_device_.clear();
  lease.blocks_.clear();
  lease.pool_.reset();
  return table;
}

std::optional<BlockRef> BlockPool::Clone(BlockId source) {
  auto handles = Take(1, Holder::kActive);
  if (!handles) return std::nullopt;
  if (device_ != nullptr) {
    device_->Clone(handles->front(), source);
  } else {
    std::memcpy(bytes(handles->front().id), bytes(source), view_.layout.block_bytes());
  }
  return BlockRef(this, handles->front());
}

void BlockPool::SetIndexed(BlockId id, bool indexed) {
  MutexLock lock(&mu_);
  if (blocks_[id].state == BlockState::kFree) Die("indexed a free block", id);
  blocks_[id].indexed = indexed;
  Settle(id);
}

BlockId BlockPool::OldestCached() const {
  MutexLock lock(&mu_);
  return lru_head_;
}

BlockRef BlockPool::HoldIndexed(BlockHandle handle) {
  MutexLock lock(&mu_);
  Block& block = blocks_[handle.id];
  if (!block.indexed || block.generation != handle.generation || block.quarantined > 0) return {};
  ++block.active;
  Settle(handle.id);
  return BlockRef(this, handle);
}

Ledger BlockPool::RecountForTest() const {
  MutexLock lock(&mu_);
  Ledger count;
  count.total = num_blocks_;
  count.block_bytes = ledger_.block_bytes;
  for (const Block& block : blocks_) {
    const BlockState state = StateOf(block);
    count.free += state == BlockState::kFree;
    count.active += state == BlockState::kActive;
    count.leased += state == BlockState::kLeased;
    count.cached += state == BlockState::kCached;
    count.quarantined += state == BlockState::kQuarantined;
  }
  return count;
}

}  // namespace baton::kvcache
