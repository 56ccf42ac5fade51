// KV memory and who owns each block of it.
//
// Every block is in exactly one state, so free + active + leased + cached + quarantined == total at any moment.
#ifndef BATON_KVCACHE_BLOCK_POOL_H_
#define BATON_KVCACHE_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/kv_view.h"

namespace baton::kvcache {

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
};

class BlockPool;

// Move-only ownership of blocks outside a running sequence: exported KV waiting to be fetched, or room reserved for a
// fetch. Destruction returns the blocks to the pool (or to quarantine, see Quarantine). May be moved between threads and
// destroyed on any; the pool outlives it.
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
  // True while every block still has the generation it was leased with (always, unless the pool was misused).
  bool Valid() const;
  // Frees now.
  void Reset();
  // Instead of freeing: a writer may still touch the bytes. The blocks stay unusable until BlockPool::EndQuarantine with
  // the returned token.
  uint64_t Quarantine();

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<BlockHandle> blocks_;
};

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_BLOCK_POOL_H_
