#include "constraint/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::constraint {

absl::string_view Vocabulary::bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const uint32_t begin = first_byte_[static_cast<size_t>(id)], end = first_byte_[static_cast<size_t>(id) + 1];
  return absl::string_view(all_bytes_).substr(begin, end - begin);
}

absl::StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::Create(
    int vocab_size, const std::function<absl::string_view(int32_t id)>& bytes_of) {
  auto vocabulary = std::make_shared<Vocabulary>();
  Vocabulary& v = *vocabulary;
  v.first_byte_.push_back(0);
  for (int32_t id = 0; id < vocab_size; ++id) {
    const absl::string_view bytes = bytes_of(id);
    if (bytes.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " has ", bytes.size(), " bytes; at most ", kMaxTokenBytes));
    }
    v.all_bytes_.append(bytes.data(), bytes.size());
    v.first_byte_.push_back(static_cast<uint32_t>(v.all_bytes_.size()));
    if (bytes.empty()) continue;
    v.tokens_.push_back(id);
    if (bytes.size() == 1) v.spellable_[static_cast<uint8_t>(bytes[0])] = true;
    v.max_depth_ = std::max(v.max_depth_, static_cast<int>(bytes.size()));
  }
  const auto text = [&v](int32_t id) { return v.bytes(id); };
  std::sort(v.tokens_.begin(), v.tokens_.end(), [&](int32_t a, int32_t b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> path;  // nodes from the root to the newest
  absl::string_view before;
  for (uint32_t i = 0; i < v.tokens_.size(); ++i) {
    const absl::string_view bytes = text(v.tokens_[i]);
    size_t common = 0;
    while (common < std::min(bytes.size(), before.size()) && bytes[common] == before[common]) ++common;
    const auto next = static_cast<uint32_t>(v.nodes_.size());
    while (path.size() > common) {
      v.nodes_[path.back()].subtree_end = next;
      path.pop_back();
    }
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(v.nodes_.size()));
      // A node on the way to a token has none of its own: what ends at it would have come before.
      v.nodes_.push_back({0, i, static_cast<uint16_t>(depth + 1), static_cast<uint8_t>(bytes[depth])});
    }
    before = bytes;
  }
  const auto end = static_cast<uint32_t>(v.nodes_.size());
  for (const uint32_t node : path) v.nodes_[node].subtree_end = end;
  v.nodes_.push_back({end + 1, static_cast<uint32_t>(v.tokens_.size()), 0, 0});
  v.all_bytes_.shrink_to_fit();
  return std::shared_ptr<const Vocabulary>(std::move(vocabulary));
}

}  // namespace baton::constraint
