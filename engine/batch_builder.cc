#include "engine/batch_builder.h"

#include <algorithm>

namespace baton::engine {

void BatchBuilder::Clear() {
  items_.clear();
  token_ids_.clear();
  positions_.clear();
  chunks_.clear();
  logit_rows_.clear();
  num_positions_ = 0;
}

void BatchBuilder::Add(const Sequence& sequence, int num_rows) {
  const int first = sequence.num_computed;
  chunks_.push_back({static_cast<int>(token_ids_.size()), num_rows, first, sequence.table.ids()});
  for (int i = 0; i < num_rows; ++i) {
    token_ids_.push_back(sequence.token_ids[first + i]);
    positions_.push_back(first + i);
    num_positions_ += first + i + 1;
  }
  Item item{sequence.id(), num_rows, -1};
  if (first + num_rows == sequence.num_tokens()) {
    item.logit_index = num_logits();
    logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  items_.push_back(item);
}

bool BatchBuilder::has_single_rows() const {
  return std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.num_rows == 1; });
}

}  // namespace baton::engine
