#include "constraint/vocabulary.h"

#include <algorithm>
#include <utility>

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
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " has ", bytes.size(), " bytes; at most ", kMaxTokenBytes));
    }
    v.all_bytes_.append(bytes.data(), bytes.size());
    v.first_byte_.push_back(static_cast<uint32_t>(v.all_bytes_.size()));
    if (bytes.empty()) continue;
    v.tokens_.push_back(id);
    if (bytes.size() == 1) v.spellable_[static_cast<uint8_t>(bytes[0])] = true;
    v.max_depth_ = std::max(v.max_depth_, static_cast<int>(bytes.size()));
  }
  const auto text = [&v](int32_t id) { return v.bytes(id); };
  // By bytes, then by id. The first eight bytes as a number decide nearly always.
  std::vector<std::pair<uint64_t, int32_t>> order;
  order.reserve(v.tokens_.size());
  for (const int32_t id : v.tokens_) {
    uint64_t key = 0;
    for (size_t i = 0; i < 8; ++i) key = key << 8 | (i < text(id).size() ? static_cast<uint8_t>(text(id)[i]) : 0);
    order.push_back({key, id});
  }
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    const int by_text = text(a.second).compare(text(b.second));
    return by_text != 0 ? by_text < 0 : a.second < b.second;
  });
  for (size_t i = 0; i < order.size(); ++i) v.tokens_[i] = order[i].second;
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
