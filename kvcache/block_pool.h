// KV memory and who owns each block of it.
//
// Every block is in exactly one state, so free + active + leased + cached + quarantined == total at any moment. A block
// can have several holders (the n choices of a request, sequences with a common prefix, a lease, the prefix index); its
// state is the first of these that applies:
//
//   quarantined  someone outside may still write its bytes
//   leased       held by a BlockLease: exported and not yet fetched, or reserved for a fetch
//   active       held by a BlockTable or BlockRef: a running sequence
//   cached       held by the prefix index only; may be evicted
//   free         nobody
//
// Where kernels cannot read the host's memory the pool keeps its blocks in a device's too (device_blocks.h), and the
// bytes here are those that transports see.
//
// Thread contract: everything here may be called from any thread, with these exceptions: one BlockTable, BlockRef or
// BlockLease object is used by one thread at a time, and the index methods belong to PrefixIndex (one thread). With a
// device, Allocate, Adopt, Clone and what names it belong to the backend's thread. The bytes of a block are written
// only by its exclusive holder before it is sealed; the pool's lock does not cover them.
#ifndef BATON_KVCACHE_BLOCK_POOL_H_
#define BATON_KVCACHE_BLOCK_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/kv_view.h"

namespace baton::kernels {
class DeviceSpace;
}

namespace baton::kvcache {

class DeviceBlocks;

using BlockId = int32_t;

enum class BlockState : uint8_t { kFree, kActive, kLeased, kCached, kQuarantined };

struct Ledger {
  int64_t total = 0, free = 0, active = 0, leased = 0, cached = 0, quarantined = 0;
  int64_t block_bytes = 0;
  bool Balanced() const { return free + active + leased + cached + quarantined == total; }
};

// A block at one moment of its life. The generation grows each time a block is taken from free, so a handle to an
// earlier life is recognised.
struct BlockHandle {
  BlockId id = -1;
  uint64_t generation = 0;
  bool operator==(const BlockHandle&) const = default;
};

class BlockPool;

// Move-only ownership of blocks outside a running sequence: exported KV waiting to be fetched, or room reserved for a
// fetch. Destruction returns the blocks to the pool (or to quarantine, see Quarantine). May be moved between threads and
// destroyed on any; it keeps the pool alive.
class BlockLease {
 public:
  BlockLease() = default;
  BlockLease(BlockLease&&) noexcept;
  BlockLease& operator=(BlockLease&&) noexcept;
  ~BlockLease();

  bool empty() const { return blocks_.empty(); }
  std::span<const BlockHandle> blocks() const { return blocks_; }
  // Bytes of the i-th block.
  std::span<std::byte> bytes(size_t i) const;
  // Where the pool's device has the i-th block; null without a device. For DeviceLanes, until DropDevice.
  std::byte* device_bytes(size_t i) const;
  // What the i-th block holds was written there by a lane, which has waited for it, and not here: Adopt copies nothing then.
  // A new block is not so. Whoever writes bytes(i) takes it back.
  void SetOnDevice(size_t i, bool on_device);
  bool on_device(size_t i) const { return i < on_device_.size() && on_device_[i]; }
  // Another hold on blocks [begin, end).
  BlockLease Share(size_t begin, size_t end) const;
  // True while every block still has the generation it was leased with (always, unless the pool was misused).
  bool Valid() const;
  // The first so many blocks hold valid KV already and are shared: nobody may write them.
  size_t num_held() const { return num_held_; }
  // Keeps the first `num_blocks` and gives the rest.
  BlockLease SplitOff(size_t num_blocks);
  // Takes the blocks of `tail`, of the same pool, behind its own.
  void Join(BlockLease tail);
  // Frees now.
  void Reset();
  // Instead of freeing: a writer may still touch the bytes. The blocks stay unusable until BlockPool::EndQuarantine with
  // the returned token (never 0; 0 when the lease is empty).
  uint64_t Quarantine();
  // Null when empty.
  BlockPool* pool() const { return pool_.get(); }

 private:
  friend class BlockPool;
  std::shared_ptr<BlockPool> pool_;
  std::vector<BlockHandle> blocks_;
  size_t num_held_ = 0;
  std::vector<bool> on_device_;  // of the first blocks; false of the rest
};

// Move-only: one sequence's hold on one block. The pool outlives it.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept;
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef() { Reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  BlockHandle handle() const { return handle_; }
  BlockRef Share() const;
  void Reset();

 private:
  friend class BlockPool;
  friend class BlockTable;
  BlockRef(BlockPool* pool, BlockHandle handle) : pool_(pool), handle_(handle) {}
  BlockPool* pool_ = nullptr;
  BlockHandle handle_;
};

// Move-only: the blocks of one sequence, in order of position. The pool outlives it.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Reset(); }

  // What kernels read: position p lies in ids()[p / block_size].
  std::span<const BlockId> ids() const { return ids_; }
  int size() const { return static_cast<int>(ids_.size()); }
  bool empty() const { return ids_.empty(); }

  void Append(BlockRef block);
  // Takes all of `other` behind its own.
  void Append(BlockTable other);
  // Another hold on the first `num_blocks` blocks.
  BlockTable Share(int num_blocks) const;
  // How many blocks would come back (to free or cached) if this table alone let go.
  int Releasable() const;
  // Lets go of all; the last block first, so that the tail of a cached prefix is the first to be evicted.
  void Reset();

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<BlockId> ids_;
};

class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Reserves address space for all blocks at once; pages are touched on first write. INVALID_ARGUMENT for an empty or
  // absurd layout or count, RESOURCE_EXHAUSTED when the system or the device refuses the memory (all say the
  // arithmetic). `device`: whose kernels use the blocks, until DropDevice; null: the CPU's.
  static absl::StatusOr<std::shared_ptr<BlockPool>> Create(const kernels::KvLayout& layout, int64_t num_blocks,
                                                           kernels::DeviceSpace* device = nullptr);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  const kernels::KvLayout& layout() const { return view_.layout; }
  const kernels::KvView& view() const { return view_; }   // the host's memory
  const kernels::KvView& kernel_view() const;             // the memory that kernels use
  DeviceBlocks* device() const { return device_.get(); }  // null: kernels use the host's
  // Nothing computes any more, and no lane reads or writes the blocks; leases may live on.
  void DropDevice();
  int64_t num_blocks() const { return num_blocks_; }
  // Blocks that hold `num_tokens` positions.
  int64_t BlocksFor(int64_t num_tokens) const {
    return (num_tokens + view_.layout.block_size - 1) / view_.layout.block_size;
  }
  Ledger ledger() const;
  // Allocatable now, counting what the prefix index would give up: free + cached.
  int64_t Available() const;
  BlockState state(BlockId id) const;
  uint64_t generation(BlockId id) const;
  // True when the block exists and is in the life that the handle names.
  bool IsCurrent(BlockHandle handle) const;

  // All or nothing, from free blocks only (PrefixIndex::EnsureFree makes room). The bytes (with a device, those there)
  // are zero, so that nothing of an earlier tenant can be read or exported.
  std::optional<BlockTable> Allocate(int64_t num_blocks);
  // The same as a lease, for KV that is about to be fetched. The bytes are not cleared: the fetch overwrites and
  // verifies all of them.
  std::optional<BlockLease> AllocateLease(int64_t num_blocks);
  // Export without copying: a lease on the first `num_blocks` blocks of a table, which keeps its own hold.
  BlockLease Lease(const BlockTable& table, int num_blocks);
  // Room for a fetch whose first blocks are known: the held ones of `prefix`, then `num_blocks` as by AllocateLease.
  std::optional<BlockLease> AllocateLeaseBehind(const BlockTable& prefix, int64_t num_blocks);
  // Import without copying: the lease's hold becomes a sequence's. INVALID_ARGUMENT, and the lease stays as it was,
  // when it is empty, of another pool, or holds an outdated block. With a device, blocks that are not there begin to be
  // copied: kernels may use the table when device()->latest() is done, and the table must live so long.
  absl::StatusOr<BlockTable> Adopt(BlockLease&& lease);
  // A copy of one block's bytes in a block of its own, if there is a free one.
  std::optional<BlockRef> Clone(BlockId source);

  // NOT_FOUND for a token that is unknown or already ended.
  absl::Status EndQuarantine(uint64_t token);

  // Called (without the pool's lock) after a lease or quarantine gave blocks back, on the thread that did it. Set before
  // the pool is shared.
  void SetReleaseCallback(std::function<void()> callback) { on_release_ = std::move(callback); }

  // The ledger recomputed from each block's holders, for tests: equals ledger() always.
  Ledger RecountForTest() const;

 private:
  friend class BlockLease;
  friend class BlockRef;
  friend class BlockTable;
  friend class PrefixIndex;

  // Holders of one block.
  struct Block {
    uint64_t generation = 0;
    int32_t active = 0;
    int32_t leased = 0;
    int32_t quarantined = 0;
    bool indexed = false;
    BlockState state = BlockState::kFree;
    BlockId lru_prev = -1;  // neighbours in the list of cached blocks
    BlockId lru_next = -1;
  };
  enum class Holder { kActive, kLease, kQuarantine };

  BlockPool(const kernels::KvView& view, int64_t num_blocks, size_t mapped_bytes);

  std::byte* bytes(BlockId id) const { return view_.block(id); }
  static int32_t& Count(Block& block, Holder holder);
  static BlockState StateOf(const Block& block);
  // Brings the block's state, the ledger, the free list and the LRU list in line with its holders.
  void Settle(BlockId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LruPush(BlockId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LruRemove(BlockId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t& Counter(BlockState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<std::vector<BlockHandle>> Take(int64_t num_blocks, Holder holder);
  void Hold(std::span<const BlockId> ids, Holder holder);
  void Release(std::span<const BlockId> ids, Holder holder);
  void ReleaseLease(std::span<const BlockHandle> blocks);
  uint64_t QuarantineLease(std::span<const BlockHandle> blocks);
  int Releasable(std::span<const BlockId> ids) const;
  void NotifyRelease() const;

  // For PrefixIndex.
  void SetIndexed(BlockId id, bool indexed);
  BlockId OldestCached() const;  // -1: none
  BlockRef HoldIndexed(BlockHandle handle);  // empty: it is not indexed in that life any more

  kernels::KvView view_;
  std::unique_ptr<DeviceBlocks> device_;
  int64_t num_blocks_;
  size_t mapped_bytes_;
  std::function<void()> on_release_;

  mutable Mutex mu_;
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mu_);
  std::vector<BlockId> free_ ABSL_GUARDED_BY(mu_);  // a stack: the last freed is the warmest
  BlockId lru_head_ ABSL_GUARDED_BY(mu_) = -1;      // oldest
  BlockId lru_tail_ ABSL_GUARDED_BY(mu_) = -1;
  Ledger ledger_ ABSL_GUARDED_BY(mu_);
  struct Quarantined {
    uint64_t token;
    std::vector<BlockId> ids;
  };
  std::vector<Quarantined> quarantines_ ABSL_GUARDED_BY(mu_);
  uint64_t next_token_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_BLOCK_POOL_H_
