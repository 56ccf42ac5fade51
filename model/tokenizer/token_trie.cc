#include "model/tokenizer/token_trie.h"

namespace baton::model {

void TokenTrie::Add(absl::string_view text, int32_t token_id) {
  if (text.empty()) return;
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t edge = uint64_t{node} * 256 + static_cast<uint8_t>(c);
    const auto [it, inserted] = edges_.try_emplace(edge, num_nodes_);
    if (inserted) {
      ++num_nodes_;
      token_ids_.push_back(-1);
    }
    node = it->second;
  }
  token_ids_[node] = token_id;
}

TokenTrie::Match TokenTrie::LongestAt(absl::string_view text, size_t at) const {
  Match best;
  if (at >= text.size() || !starts_[static_cast<uint8_t>(text[at])]) return best;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto it = edges_.find(uint64_t{node} * 256 + static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_ids_[node] >= 0) best = {token_ids_[node], i + 1 - at};
  }
  return best;
}

TokenTrie::Match TokenTrie::Find(absl::string_view text, size_t from, size_t* at) const {
  if (!empty()) {
    for (size_t i = from; i < text.size(); ++i) {
      const Match match = LongestAt(text, i);
      if (match.token_id >= 0) {
        *at = i;
        return match;
      }
    }
  }
  *at = text.size();
  return {};
}

}  // namespace baton::model
