#include "kvtransfer/block_check.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cstdlib>

namespace baton::kvtransfer {

size_t PieceBytes(size_t block_bytes) {
  // A fraction of a usual second-level cache: copies and sum of a piece all find it there. A multiple of a page.
  constexpr size_t kUsual = size_t{256} << 10, kPage = 4096;
  const size_t least = (block_bytes + kMaxPieces - 1) / kMaxPieces;
  return std::max(kUsual, (least + kPage - 1) / kPage * kPage);
}

void BlockCheck::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

BlockCheck::BlockCheck(bool sum, const BlockTagger* tagger, uint32_t block_idx, uint64_t generation) {
  if (sum) {
    state_.reset(XXH3_createState());
    if (state_ == nullptr || XXH3_64bits_reset(state_.get()) != XXH_OK) std::abort();  // out of memory
  }
  if (tagger != nullptr) tag_.emplace(tagger->Begin(block_idx, generation));
}

void BlockCheck::Add(std::span<const std::byte> bytes) {
  if (state_ != nullptr) {
#if defined(__x86_64__)
    XXH3_64bits_update_dispatch(state_.get(), bytes.data(), bytes.size());
#else
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
#endif
  }
  if (tag_.has_value()) tag_->Add(bytes);
}

uint64_t BlockCheck::checksum() const { return state_ == nullptr ? 0 : XXH3_64bits_digest(state_.get()); }

std::string BlockCheck::TakeTag() { return tag_.has_value() ? tag_->Take() : ""; }

}  // namespace baton::kvtransfer
