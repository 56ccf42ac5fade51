#include "kernels/cuda/pass_inputs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/cuda/attention_plan.h"

namespace baton::kernels::cuda {

bool OnlyDecodes(std::span<const SequenceChunk> chunks) {
  int row = 0;
  for (const SequenceChunk& chunk : chunks) {
    if (chunk.num_rows != 1 || chunk.row_begin != row++) return false;
  }
  return !chunks.empty();
}

int PieceBucket(std::span<const SequenceChunk> chunks) {
  int pieces = 1;
  for (const SequenceChunk& chunk : chunks) pieces = std::max(pieces, chunk.context_len / kAttentionPiece + 1);
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(pieces)));
}

template <typename T>
size_t PassInputs::Append(std::span<const T> values) {
  constexpr size_t kAlignment = 16;
  const size_t at = (image_.size() + kAlignment - 1) / kAlignment * kAlignment;
  image_.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(image_.data() + at, values.data(), values.size_bytes());
  return at;
}

PassInputs::Plan PassInputs::AppendPlan(std::span<const SequenceChunk> chunks, const AttentionShape& shape, int rows,
                                        int piece_bucket, std::vector<int32_t>* block_tables) {
  const KvLayout layout = {.num_kv_heads = shape.num_kv_heads, .head_dim = shape.head_dim};
  AttentionPlan planned = PlanAttention(chunks, layout, shape.group, shape.sliding_window, shape.tensor_cores);
  Plan plan = {.max_pieces = planned.max_pieces, .record_floats = planned.record_floats};
  if (piece_bucket > 0) {
    const size_t units_per_row = (shape.group + kDecodeQueries - 1) / kDecodeQueries;
    planned.decode.resize(static_cast<size_t>(rows) * units_per_row, AttentionUnit{.num_heads = 0, .num_pieces = 0});
    plan.max_pieces = piece_bucket;
    // Keys that a row sees lie in so many pieces, wherever they begin.
    const int window_pieces = (shape.sliding_window + kAttentionPiece - 2) / kAttentionPiece + 1;
    if (shape.sliding_window > 0) plan.max_pieces = std::min(piece_bucket, window_pieces);
  }
  plan.prefill = Append<AttentionUnit>(planned.prefill);
  plan.decode = Append<AttentionUnit>(planned.decode);
  plan.num_prefill = static_cast<int>(planned.prefill.size());
  plan.num_decode = static_cast<int>(planned.decode.size());
  *block_tables = std::move(planned.block_tables);
  return plan;
}

void PassInputs::Build(std::span<const SequenceChunk> chunks, int block_size, std::span<const AttentionShape> shapes,
                       int rows, int piece_bucket) {
  image_.clear();
  plans_.clear();
  rows_ = rows;
  std::vector<int32_t> positions(rows), block_ids(rows, -1), block_tables;
  for (const SequenceChunk& chunk : chunks) {
    for (int i = 0; i < chunk.num_rows; ++i) {
      const int position = chunk.context_len + i;
      positions[chunk.row_begin + i] = position;
      block_ids[chunk.row_begin + i] = chunk.block_table[position / block_size];
    }
  }
  positions_ = Append<int32_t>(positions);
  block_ids_ = Append<int32_t>(block_ids);
  for (const AttentionShape& shape : shapes) {
    plans_.push_back(AppendPlan(chunks, shape, rows, piece_bucket, &block_tables));  // the tables are the same for all
  }
  block_tables_ = Append<int32_t>(block_tables);
}

int64_t PassInputs::record_floats() const {
  int64_t floats = 0;
  for (const Plan& plan : plans_) floats = std::max(floats, plan.record_floats);
  return floats;
}

}  // namespace baton::kernels::cuda
