#include "kvcache/prefix_index.h"

#include <algorithm>
#include <utility>

namespace baton::kvcache {

PrefixIndex::PrefixIndex(BlockPool* pool, ExtendFn extend, PrefixJournal* journal)
    : pool_(pool), extend_(std::move(extend)), journal_(journal), by_block_(pool->num_blocks()) {}

PrefixIndex::~PrefixIndex() { Clear(); }

PrefixIndex::Cursor PrefixIndex::Root(absl::string_view tenant) const {
  return {RootPrefixHash(tenant, pool_->layout().block_size), 0, std::string(tenant), 0};
}

bool PrefixIndex::Same(const Entry& entry, const Cursor& parent, std::span<const int32_t> tokens) const {
  return entry.parent_uid == parent.uid && (parent.uid != 0 || entry.tenant == parent.tenant) &&
         std::ranges::equal(entry.tokens, tokens);
}

bool PrefixIndex::Alive(const Cursor& cursor) const {
  if (cursor.uid == 0) return true;
  const auto it = entries_.find(cursor.hash);
  return it != entries_.end() && it->second.uid == cursor.uid;
}

const PrefixIndex::Entry* PrefixIndex::Step(Cursor* cursor, std::span<const int32_t> tokens) const {
  const PrefixHash hash = extend_(cursor->hash, tokens);
  const auto it = entries_.find(hash);
  if (it == entries_.end() || !Same(it->second, *cursor, tokens)) return nullptr;
  cursor->hash = hash;
  cursor->uid = it->second.uid;
  ++cursor->num_blocks;
  return &it->second;
}

PrefixIndex::Hit PrefixIndex::Peek(absl::string_view tenant, std::span<const int32_t> token_ids,
                                   int max_blocks) const {
  const int block_size = pool_->layout().block_size;
  Hit hit;
  Cursor cursor = Root(tenant);
  while (hit.blocks < max_blocks && static_cast<size_t>((hit.blocks + 1) * block_size) <= token_ids.size()) {
    const Entry* entry = Step(&cursor, token_ids.subspan(hit.blocks * block_size, block_size));
    if (entry == nullptr) break;
    const BlockState state = pool_->state(entry->block.id);
    if (state == BlockState::kQuarantined) break;
    hit.cached_blocks += state == BlockState::kCached;
    ++hit.blocks;
  }
  return hit;
}

BlockTable PrefixIndex::Match(absl::string_view tenant, std::span<const int32_t> token_ids, int max_blocks,
                              Cursor* cursor) {
  const int block_size = pool_->layout().block_size;
  BlockTable table;
  *cursor = Root(tenant);
  while (table.size() < max_blocks && static_cast<size_t>((table.size() + 1) * block_size) <= token_ids.size()) {
    Cursor next = *cursor;
    const Entry* entry = Step(&next, token_ids.subspan(table.size() * block_size, block_size));
    if (entry == nullptr) break;
    BlockRef block = pool_->HoldIndexed(entry->block);
    if (!block) break;
    table.Append(std::move(block));
    *cursor = std::move(next);
  }
  return table;
}

bool PrefixIndex::Insert(Cursor* parent, std::span<const int32_t> block_tokens, BlockId block) {
  if (!Alive(*parent)) return false;
  if (Step(parent, block_tokens) != nullptr) return true;
  const PrefixHash hash = extend_(parent->hash, block_tokens);
  if (const auto it = entries_.find(hash); it != entries_.end()) {
    // Either a true collision, or a child whose parent was evicted and came back. Nobody can reach the latter any more;
    // the former may be in use and stays.
    const BlockId old = it->second.block.id;
    if (pool_->state(old) != BlockState::kCached || hash == parent->hash) return false;
    Erase(old);
  }
  if (by_block_[block].has_value()) return false;
  Entry entry{next_uid_++, parent->uid, parent->uid == 0 ? parent->tenant : std::string(),
              {block_tokens.begin(), block_tokens.end()}, {block, pool_->generation(block)}};
  pool_->SetIndexed(block, true);
  by_block_[block] = hash;
  parent->hash = hash;
  parent->uid = entry.uid;
  ++parent->num_blocks;
  entries_.emplace(hash, std::move(entry));
  if (journal_ != nullptr) journal_->Added(hash.Low64());
  return true;
}

void PrefixIndex::Erase(BlockId block) {
  if (journal_ != nullptr) journal_->Removed(by_block_[block]->Low64());
  entries_.erase(*by_block_[block]);
  by_block_[block].reset();
  pool_->SetIndexed(block, false);
}

bool PrefixIndex::EnsureFree(int64_t num_blocks) {
  while (pool_->ledger().free < num_blocks) {
    const BlockId oldest = pool_->OldestCached();
    if (oldest < 0) return false;
    Erase(oldest);
  }
  return true;
}

void PrefixIndex::Clear() {
  for (BlockId block = 0; block < static_cast<BlockId>(by_block_.size()); ++block) {
    if (by_block_[block].has_value()) Erase(block);
  }
}

}  // namespace baton::kvcache
