// The bytes of a model's tokens, laid out for walking: a trie in depth-first order, so that a beginning that leads nowhere
// is left by one jump.
//
// Thread contract: immutable.
#ifndef BATON_CONSTRAINT_VOCABULARY_H_
#define BATON_CONSTRAINT_VOCABULARY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "constraint/grammar.h"

namespace baton::constraint {

class Vocabulary {
 public:
  struct Node {
    uint32_t subtree_end;   // the first node that is not below this one
    uint32_t first_token;   // of those that end here, in tokens(); they go on to the next node's first
    uint16_t depth;         // 1: a token's first byte
    uint8_t byte;
  };
  static constexpr size_t kMaxTokenBytes = 4096;

  // `bytes_of(id)` for ids in [0, vocab_size): empty for a token that makes no text (special ones). INVALID_ARGUMENT for a
  // token that is too long.
  static absl::StatusOr<std::shared_ptr<const Vocabulary>> Create(
      int vocab_size, const std::function<absl::string_view(int32_t id)>& bytes_of);

  int size() const { return static_cast<int>(first_byte_.size()) - 1; }
  // "" for a token without text, and outside the vocabulary.
  absl::string_view bytes(int32_t id) const;
  // Bytes that are a token by themselves: whatever is made of these can be written.
  const ByteSet& spellable() const { return spellable_; }

  // nodes().back() is no node: it ends the list.
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int max_depth() const { return max_depth_; }

 private:
  std::string all_bytes_;
  std::vector<uint32_t> first_byte_;  // [size + 1]
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  ByteSet spellable_;
  int max_depth_ = 0;
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_VOCABULARY_H_
