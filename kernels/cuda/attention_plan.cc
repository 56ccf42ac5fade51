#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace baton::kernels::cuda {
namespace {

void PlanDecode(AttentionUnit unit, int group, int sliding_window, AttentionPlan* plan) {
  const int position = unit.first_position;
  const int begin = sliding_window > 0 ? std::max(position - sliding_window + 1, 0) : 0;
  unit.first_piece = begin / kAttentionPiece;
  unit.num_pieces = position / kAttentionPiece + 1 - unit.first_piece;
  for (int head = 0; head < group; head += kDecodeQueries) {
    unit.head_begin = head;
    unit.num_heads = std::min(kDecodeQueries, group - head);
    unit.record = plan->decode.empty() ? 0 : plan->decode.back().record + plan->decode.back().num_pieces;
    plan->decode.push_back(unit);
    plan->max_pieces = std::max(plan->max_pieces, unit.num_pieces);
  }
}

void PlanPrefill(const AttentionUnit& chunk, int group, int queries, AttentionPlan* plan) {
  const int heads = std::min(group, queries), rows = queries / heads;
  for (int row = 0; row < chunk.num_rows; row += rows) {
    for (int head = 0; head < group; head += heads) {
      AttentionUnit unit = chunk;
      unit.row_begin += row;
      unit.num_rows = std::min(rows, chunk.num_rows - row);
      unit.first_position += row;
      unit.head_begin = head;
      unit.num_heads = std::min(heads, group - head);
      plan->prefill.push_back(unit);
    }
  }
}

}  // namespace

AttentionPlan PlanAttention(std::span<const SequenceChunk> chunks, const KvLayout& layout, int group,
                            int sliding_window, bool tensor_cores) {
  AttentionPlan plan;
  for (const SequenceChunk& chunk : chunks) {
    const AttentionUnit unit = {.row_begin = chunk.row_begin,
                                .num_rows = chunk.num_rows,
                                .first_position = chunk.context_len,
                                .table_begin = static_cast<int32_t>(plan.block_tables.size())};
    plan.block_tables.insert(plan.block_tables.end(), chunk.block_table.begin(), chunk.block_table.end());
    if (chunk.num_rows == 1) {
      PlanDecode(unit, group, sliding_window, &plan);
    } else {
      PlanPrefill(unit, group, tensor_cores ? kTensorPrefillQueries : kPrefillQueries, &plan);
    }
  }
  if (!plan.decode.empty()) {
    const int64_t records = plan.decode.back().record + plan.decode.back().num_pieces;
    plan.record_floats = records * layout.num_kv_heads * kDecodeQueries * AttentionRecordFloats(layout.head_dim);
  }
  return plan;
}

}  // namespace baton::kernels::cuda
