// Lays the rows of one step out as the model wants them.
//
// Thread contract: the engine's thread only.
#ifndef BATON_ENGINE_BATCH_BUILDER_H_
#define BATON_ENGINE_BATCH_BUILDER_H_

#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "kernels/kv_view.h"
#include "model/model_runner.h"

namespace baton::engine {

class BatchBuilder {
 public:
  struct Item {
    uint64_t id = 0;
    int num_rows = 0;
    int logit_index = -1;  // of its last row among the logits; -1: not all known tokens are computed by this step
  };

  void Clear();
  // The next `num_rows` tokens that are not computed. The sequence and its table stay as they are until Clear.
  void Add(const Sequence& sequence, int num_rows);

  bool empty() const { return items_.empty(); }
  const std::vector<Item>& items() const { return items_; }
  bool has_prefill() const { return num_rows() > static_cast<int>(items_.size()); }  // some item has more than one row
  bool has_single_rows() const;  // some item has one row: it decodes
  int num_rows() const { return static_cast<int>(token_ids_.size()); }
  int64_t num_positions() const { return num_positions_; }  // that the rows attend to, summed
  int num_logits() const { return static_cast<int>(logit_rows_.size()); }
  // Valid until the next Add or Clear.
  model::ForwardBatch batch() const { return {token_ids_, positions_, chunks_, logit_rows_}; }

 private:
  std::vector<Item> items_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<kernels::SequenceChunk> chunks_;
  std::vector<int32_t> logit_rows_;
  int64_t num_positions_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_BATCH_BUILDER_H_
