// What a block's seal says of its bytes, computed while they pass by in pieces: each is still in the processor's cache then,
// and a pass over memory that is not costs three times as much.
#ifndef BATON_KVTRANSFER_BLOCK_CHECK_H_
#define BATON_KVTRANSFER_BLOCK_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvtransfer/block_tag.h"

struct XXH3_state_s;

namespace baton::kvtransfer {

// A block travels in pieces of this many bytes, the last one in fewer. At most kMaxPieces a block.
inline constexpr size_t kMaxPieces = 64;
size_t PieceBytes(size_t block_bytes);

// One block, its bytes in order. Movable; one thread at a time.
class BlockCheck {
 public:
  // Without `sum` no checksum is made, without `tagger` (used here only) no tag.
  BlockCheck(bool sum, const BlockTagger* tagger, uint32_t block_idx, uint64_t generation);
  void Add(std::span<const std::byte> bytes);
  // Of everything added, as BlockChecksum; 0 when none is made.
  uint64_t checksum() const;
  // Once, at the end: as BlockTagger::Tag; empty when none is made.
  std::string TakeTag();

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
  std::optional<BlockTagger::Stream> tag_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_BLOCK_CHECK_H_
