// Finds which of a fixed set of strings starts at a place of a text, longest first.
#ifndef BATON_MODEL_TOKENIZER_TOKEN_TRIE_H_
#define BATON_MODEL_TOKENIZER_TOKEN_TRIE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace baton::model {

// Immutable once filled; then any number of threads may search.
class TokenTrie {
 public:
  struct Match {
    int32_t token_id = -1;  // -1: none
    size_t size = 0;
  };

  // An empty string is ignored; of two equal strings the later wins.
  void Add(absl::string_view text, int32_t token_id);
  bool empty() const { return num_nodes_ == 1; }

  // The longest string that starts at text[at].
  Match LongestAt(absl::string_view text, size_t at) const;
  // The leftmost-longest match at or after `from`; its place goes to `at` (text.size() if there is none).
  Match Find(absl::string_view text, size_t from, size_t* at) const;

 private:
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // node * 256 + byte -> node
  std::vector<int32_t> token_ids_ = {-1};          // of the string that ends at a node
  std::array<bool, 256> starts_ = {};
  uint32_t num_nodes_ = 1;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_TOKEN_TRIE_H_
