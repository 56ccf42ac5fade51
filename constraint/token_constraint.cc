#include "constraint/token_constraint.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"

namespace baton::constraint {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

}  // namespace

bool TokenMask::Allows(int32_t id) const {
  if (bits_.empty()) return std::binary_search(ids_.begin(), ids_.end(), id);
  const size_t word = static_cast<size_t>(id) / 64;
  return id >= 0 && word < bits_.size() && (bits_[word] >> (id % 64) & 1) != 0;
}

void TokenMask::Apply(std::span<float> logits, std::span<const int32_t> ends) const {
  const auto known = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  std::vector<std::pair<int32_t, float>> kept;
  const auto keep = [&](int32_t id) {
    if (known(id)) kept.push_back({id, logits[static_cast<size_t>(id)]});
  };
  for (const int32_t id : ends) {
    if (may_end_ && vocabulary_->bytes(id).empty()) keep(id);
  }
  if (bits_.empty()) {
    std::ranges::for_each(ids_, keep);
    std::ranges::fill(logits, kMasked);
  } else {
    for (size_t word = 0; word * 64 < logits.size(); ++word) {
      const uint64_t bits = word < bits_.size() ? bits_[word] : 0;
      if (bits == ~uint64_t{0}) continue;
      const size_t count = std::min<size_t>(64, logits.size() - word * 64);
      for (size_t i = 0; i < count; ++i) {
        if ((bits >> i & 1) == 0) logits[word * 64 + i] = kMasked;
      }
    }
  }
  for (const auto& [id, logit] : kept) logits[static_cast<size_t>(id)] = logit;
}

TokenConstraint::TokenConstraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      automaton_(std::move(grammar)),
      path_(static_cast<size_t>(vocabulary_->max_depth()) + 1) {}

void TokenConstraint::ClearIfBig() {
  if (memory_bytes() <= kMaxMemoryBytes) return;
  automaton_.Clear();
  masks_.clear();
  mask_bytes_ = 0;
  ++generation_;
}

absl::Status TokenConstraint::MoveTo(std::span<const int32_t> tokens, Position* position) {
  ClearIfBig();
  if (position->generation != generation_ || position->num_tokens > tokens.size()) {
    *position = Position();
    position->generation = generation_;
  }
  for (; position->num_tokens < tokens.size(); ++position->num_tokens) {
    const int32_t id = tokens[position->num_tokens];
    const absl::string_view bytes = vocabulary_->bytes(id);
    Automaton::StateId state = bytes.empty() ? Automaton::kDead : position->state;
    for (const char c : bytes) state = automaton_.Next(state, static_cast<uint8_t>(c));
    if (state == Automaton::kDead) {
      return absl::InvalidArgumentError(absl::StrCat("output token ", position->num_tokens, " (id ", id,
                                                     ") is not one that the constraint allows there"));
    }
    position->state = state;
  }
  return absl::OkStatus();
}

absl::StatusOr<const TokenMask*> TokenConstraint::Mask(const Position& position) {
  if (const auto it = masks_.find(position.state); it != masks_.end()) return it->second.get();
  absl::StatusOr<TokenMask> mask = MakeMask(position.state);
  if (!mask.ok()) return mask.status();
  auto owned = std::make_unique<TokenMask>(*std::move(mask));
  mask_bytes_ += owned->memory_bytes() + 64;
  return masks_.emplace(position.state, std::move(owned)).first->second.get();
}

absl::StatusOr<TokenMask> TokenConstraint::MakeMask(Automaton::StateId state) {
  TokenMask mask;
  mask.vocabulary_ = vocabulary_;
  mask.may_end_ = automaton_.MayEnd(state);
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const std::span<const int32_t> tokens = vocabulary_->tokens();
  std::vector<int32_t> allowed;
  path_[0] = state;
  const auto ambiguous = [] {
    return absl::InvalidArgumentError(
        "sampling.constraint: is too ambiguous: too many ways of reading the text are open at once; use fewer "
        "alternatives "
        "that begin alike, and no large counts of things that may be left out");
  };
  if (automaton_.num_places(state) > Automaton::kMaxPlaces) return ambiguous();
  walk_ = walk_ == UINT32_MAX ? 1 : walk_ + 1;
  int64_t cost = 0;  // of what is needed, not of what had to be made: the same at every time
  for (uint32_t i = 0; i + 1 < nodes.size();) {
    const Vocabulary::Node& node = nodes[i];
    const Automaton::StateId next = automaton_.NextCounted(path_[node.depth - 1], node.byte, walk_, &cost);
    if (next == Automaton::kDead) {
      i = node.subtree_end;
      continue;
    }
    if (cost > kMaxMaskCost || automaton_.num_places(next) > Automaton::kMaxPlaces) return ambiguous();
    path_[node.depth] = next;
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) allowed.push_back(tokens[t]);
    ++i;
  }
  mask.num_tokens_ = static_cast<int>(allowed.size());
  const size_t words = (static_cast<size_t>(vocabulary_->size()) + 63) / 64;
  if (allowed.size() < 2 * words) {
    std::sort(allowed.begin(), allowed.end());
    mask.ids_ = std::move(allowed);
    mask.ids_.shrink_to_fit();
  } else {
    mask.bits_.assign(words, 0);
    for (const int32_t id : allowed) mask.bits_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  return mask;
}

}  // namespace baton::constraint
