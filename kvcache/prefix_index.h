// Which block holds the KV of which token prefix.
//
// Only full, sealed blocks are indexed. A block that only the index holds is `cached` in the pool's ledger and is given
// up, least recently used first, when room is needed. A hit is proved, not believed: the tokens of the block and the
// identity of its parent are compared, so that even a hash collision cannot hand out foreign KV.
//
// Thread contract: one thread (the engine's). The pool outlives the index.
#ifndef BATON_KVCACHE_PREFIX_INDEX_H_
#define BATON_KVCACHE_PREFIX_INDEX_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "kvcache/block_pool.h"
#include "kvcache/prefix_hash.h"
#include "kvcache/prefix_journal.h"

namespace baton::kvcache {

class PrefixIndex {
 public:
  // Replaced in tests, to make names collide.
  using ExtendFn = std::function<PrefixHash(const PrefixHash& parent, std::span<const int32_t> block_tokens)>;

  // `journal`, if any, hears of every name that comes and goes; not owned.
  explicit PrefixIndex(BlockPool* pool, ExtendFn extend = ExtendPrefixHash, PrefixJournal* journal = nullptr);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // A place in the index: the empty prefix of a tenant, or an indexed block. Becomes dead when its entry goes.
  struct Cursor {
    PrefixHash hash;
    uint64_t uid = 0;  // 0: root
    std::string tenant;
    int num_blocks = 0;
  };
  Cursor Root(absl::string_view tenant) const;

  struct Hit {
    int blocks = 0;         // longest indexed prefix, in blocks
    int cached_blocks = 0;  // those of them that only the index holds: using them makes them unavailable
  };
  // Looks without taking. `token_ids` are whole sequences; at most max_blocks blocks are considered.
  Hit Peek(absl::string_view tenant, std::span<const int32_t> token_ids, int max_blocks) const;

  // Takes the longest indexed prefix; *cursor is the place after it.
  BlockTable Match(absl::string_view tenant, std::span<const int32_t> token_ids, int max_blocks, Cursor* cursor);

  // Indexes a sealed block behind *parent and moves *parent to it. An equal entry stays as it is (the block is then a
  // duplicate and not indexed). False when the parent is dead or the name is taken by another prefix in use: the
  // sequence should stop inserting.
  bool Insert(Cursor* parent, std::span<const int32_t> block_tokens, BlockId block);

  // Evicts until `num_blocks` are free, if that can be. False: there are not enough.
  bool EnsureFree(int64_t num_blocks);
  // Evicts everything that nobody else holds, and forgets the rest.
  void Clear();

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    uint64_t uid = 0;
    uint64_t parent_uid = 0;
    std::string tenant;  // of a first block; later ones are bound by their parent
    std::vector<int32_t> tokens;
    BlockHandle block;
  };

  bool Same(const Entry& entry, const Cursor& parent, std::span<const int32_t> tokens) const;
  bool Alive(const Cursor& cursor) const;
  // The entry behind *cursor for these tokens, and *cursor moved to it; null when there is none.
  const Entry* Step(Cursor* cursor, std::span<const int32_t> tokens) const;
  void Erase(BlockId block);

  BlockPool* const pool_;
  const ExtendFn extend_;
  PrefixJournal* const journal_;
  std::unordered_map<PrefixHash, Entry, PrefixHashHasher> entries_;
  std::vector<std::optional<PrefixHash>> by_block_;  // [block id]
  uint64_t next_uid_ = 1;
};

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_PREFIX_INDEX_H_
