// The owning handles; the pool itself is in block_pool.cc.
#include <algorithm>
#include <utility>

#include "kvcache/block_pool.h"

namespace baton::kvcache {

BlockLease::BlockLease(BlockLease&& other) noexcept
    : pool_(std::move(other.pool_)),
      blocks_(std::exchange(other.blocks_, {})),
      num_held_(std::exchange(other.num_held_, 0)),
      on_device_(std::exchange(other.on_device_, {})) {}

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::move(other.pool_);
    blocks_ = std::exchange(other.blocks_, {});
    num_held_ = std::exchange(other.num_held_, 0);
    on_device_ = std::exchange(other.on_device_, {});
  }
  return *this;
}

BlockLease::~BlockLease() { Reset(); }

BlockLease BlockLease::SplitOff(size_t num_blocks) {
  BlockLease rest;
  if (num_blocks >= blocks_.size()) return rest;
  rest.pool_ = pool_;
  rest.blocks_.assign(blocks_.begin() + num_blocks, blocks_.end());
  rest.num_held_ = num_held_ > num_blocks ? num_held_ - num_blocks : 0;
  if (on_device_.size() > num_blocks) {
    rest.on_device_.assign(on_device_.begin() + static_cast<ptrdiff_t>(num_blocks), on_device_.end());
    on_device_.resize(num_blocks);
  }
  blocks_.resize(num_blocks);
  num_held_ = std::min(num_held_, num_blocks);
  if (blocks_.empty()) pool_.reset();
  return rest;
}

void BlockLease::Join(BlockLease tail) {
  if (tail.blocks_.empty()) return;
  if (blocks_.empty()) {
    *this = std::move(tail);
    return;
  }
  if (num_held_ == blocks_.size()) num_held_ += tail.num_held_;
  if (!tail.on_device_.empty()) {
    on_device_.resize(blocks_.size());
    on_device_.insert(on_device_.end(), tail.on_device_.begin(), tail.on_device_.end());
    tail.on_device_.clear();
  }
  blocks_.insert(blocks_.end(), tail.blocks_.begin(), tail.blocks_.end());
  tail.blocks_.clear();
  tail.pool_.reset();
}

std::span<std::byte> BlockLease::bytes(size_t i) const {
  return {pool_->bytes(blocks_[i].id), pool_->layout().block_bytes()};
}

void BlockLease::SetOnDevice(size_t i, bool on_device) {
  if (this->on_device(i) == on_device) return;
  on_device_.resize(blocks_.size());
  on_device_[i] = on_device;
}

BlockLease BlockLease::Share(size_t begin, size_t end) const {
  BlockLease lease;
  if (begin >= end) return lease;
  std::vector<BlockId> ids;
  for (size_t i = begin; i < end; ++i) ids.push_back(blocks_[i].id);
  pool_->Hold(ids, BlockPool::Holder::kLease);
  lease.pool_ = pool_;
  lease.blocks_.assign(blocks_.begin() + static_cast<ptrdiff_t>(begin), blocks_.begin() + static_cast<ptrdiff_t>(end));
  return lease;
}

bool BlockLease::Valid() const {
  for (const BlockHandle& handle : blocks_) {
    if (!pool_->IsCurrent(handle)) return false;
  }
  return true;
}

void BlockLease::Reset() {
  if (blocks_.empty()) return;
  pool_->ReleaseLease(std::exchange(blocks_, {}));
  pool_.reset();
  num_held_ = 0;
  on_device_.clear();
}

uint64_t BlockLease::Quarantine() {
  if (blocks_.empty()) return 0;
  const uint64_t token = pool_->QuarantineLease(std::exchange(blocks_, {}));
  pool_.reset();
  num_held_ = 0;
  on_device_.clear();
  return token;
}

BlockRef::BlockRef(BlockRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), handle_(std::exchange(other.handle_, {})) {}

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    handle_ = std::exchange(other.handle_, {});
  }
  return *this;
}

BlockRef BlockRef::Share() const {
  if (pool_ == nullptr) return {};
  pool_->Hold({&handle_.id, 1}, BlockPool::Holder::kActive);
  return BlockRef(pool_, handle_);
}

void BlockRef::Reset() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->Release({&handle_.id, 1}, BlockPool::Holder::kActive);
  handle_ = {};
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), ids_(std::exchange(other.ids_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    ids_ = std::exchange(other.ids_, {});
  }
  return *this;
}

void BlockTable::Append(BlockRef block) {
  if (!block) return;
  pool_ = std::exchange(block.pool_, nullptr);
  ids_.push_back(block.handle_.id);
}

void BlockTable::Append(BlockTable other) {
  if (other.ids_.empty()) return;
  pool_ = std::exchange(other.pool_, nullptr);
  ids_.insert(ids_.end(), other.ids_.begin(), other.ids_.end());
  other.ids_.clear();
}

BlockTable BlockTable::Share(int num_blocks) const {
  BlockTable table;
  if (num_blocks == 0) return table;
  table.ids_.assign(ids_.begin(), ids_.begin() + num_blocks);
  table.pool_ = pool_;
  pool_->Hold(table.ids_, BlockPool::Holder::kActive);
  return table;
}

int BlockTable::Releasable() const { return ids_.empty() ? 0 : pool_->Releasable(ids_); }

void BlockTable::Reset() {
  if (ids_.empty()) return;
  pool_->Release(std::exchange(ids_, {}), BlockPool::Holder::kActive);
  pool_ = nullptr;
}

}  // namespace baton::kvcache
