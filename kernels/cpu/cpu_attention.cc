// CpuBackend::Attention: which thread computes what. (The arithmetic is in attention_impl.h.)
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace baton::kernels::cpu {
namespace {

// Pieces of keys that the one row of a decode chunk sees.
int FirstPiece(const SequenceChunk& chunk, int sliding_window) {
  const int begin = sliding_window > 0 ? std::max(chunk.context_len - sliding_window + 1, 0) : 0;
  return begin / kKeyPiece;
}
int NumPieces(const SequenceChunk& chunk, int sliding_window) {
  return chunk.context_len / kKeyPiece + 1 - FirstPiece(chunk, sliding_window);
}

}  // namespace

// Few short pieces would leave threads idle: then a KV head's group of query heads is split, and of a decoding sequence
// the context, in the pieces that the order of operations has anyway.
void CpuBackend::PlanAttention(std::span<const SequenceChunk> chunks, int num_kv_heads, int group, int sliding_window) {
  constexpr int kUnitsPerThread = 4;  // enough that one unit more or less does not matter
  int64_t units = 0;
  for (const SequenceChunk& chunk : chunks) units += (chunk.num_rows + 15) / 16 * num_kv_heads;
  const int num_threads = pool_.num_threads();
  const bool by_piece = num_threads > 1 && units < int64_t{num_threads} * kUnitsPerThread;
  units_.clear();
  merges_.clear();
  int64_t num_records = 0;
  for (const SequenceChunk& chunk : chunks) {
    const int num_pieces = NumPieces(chunk, sliding_window);
    const bool split = by_piece && chunk.num_rows == 1 && num_pieces > 1 && group <= kMaxAttentionQueries;
    const int64_t splits = units > 0 && !split ? (num_threads + units - 1) / units : 1;
    const int heads_per_unit = std::min<int>(std::max<int64_t>((group + splits - 1) / splits, 1), kMaxAttentionQueries);
    const int rows_per_unit = std::max(kMaxAttentionQueries / heads_per_unit, 1);
    for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      for (int head = 0; head < group; head += heads_per_unit) {
        for (int row = 0; row < chunk.num_rows; row += rows_per_unit) {
          AttentionUnit unit{&chunk, kv_head, head, std::min(head + heads_per_unit, group), row,
                             std::min(row + rows_per_unit, chunk.num_rows)};
          if (!split) {
            units_.push_back(unit);
            continue;
          }
          unit.record = num_records;
          merges_.push_back({unit, num_pieces});
          for (int i = 0; i < num_pieces; ++i) {
            unit.only_piece = (FirstPiece(chunk, sliding_window) + i) * kKeyPiece;
            unit.record = num_records;
            num_records += group;
            units_.push_back(unit);
          }
        }
      }
    }
  }
  num_attention_records_ = num_records;
}

AttentionArgs CpuBackend::ArgsOf(const AttentionUnit& unit, const AttentionArgs& common, int group,
                                 const KvLayout& layout, int layer) {
  AttentionArgs args = common;
  const int64_t first_head = int64_t{unit.kv_head} * group + unit.head_begin;
  args.q += first_head * args.head_dim;
  args.out += first_head * args.head_dim;
  args.num_heads = unit.head_end - unit.head_begin;
  args.row_begin = unit.chunk->row_begin + unit.row_begin;
  args.row_end = unit.chunk->row_begin + unit.row_end;
  args.first_position = unit.chunk->context_len + unit.row_begin;
  args.block_table = unit.chunk->block_table.data();
  args.k_offset = layout.offset(layer, false, unit.kv_head);
  args.v_offset = layout.offset(layer, true, unit.kv_head);
  args.only_piece = unit.only_piece;
  args.piece_records = attention_records_.data() + unit.record * AttentionRecordFloats(args.head_dim);
  return args;
}

CpuBackend::AttentionJob CpuBackend::BeginAttention(int layer, const float* q, int64_t q_stride,
                                                    std::span<const SequenceChunk> chunks, const KvView& kv,
                                                    const AttentionParams& params, float* out, int64_t out_stride) {
  AttentionJob job;
  job.layout = kv.layout;
  job.layer = layer;
  job.group = params.num_heads / kv.layout.num_kv_heads;
  PlanAttention(chunks, kv.layout.num_kv_heads, job.group, params.sliding_window);
  const int head_dim = kv.layout.head_dim;
  attention_scratch_.Reserve(AttentionScratchFloats(head_dim) * pool_.num_threads());
  attention_records_.Reserve(num_attention_records_ * AttentionRecordFloats(head_dim));

  AttentionArgs& common = job.common;
  common.q = q;
  common.out = out;
  common.q_stride = q_stride;
  common.out_stride = out_stride;
  common.head_dim = head_dim;
  common.kv_base = kv.base;
  common.block_bytes = kv.layout.block_bytes();
  common.block_size = kv.layout.block_size;
  common.dtype = kv.layout.dtype;
  common.scale = params.scale;
  common.sliding_window = params.sliding_window;
  common.logit_softcap = params.logit_softcap;
  for (const SequenceChunk& chunk : chunks) {
    job.work += int64_t{chunk.num_rows} * (chunk.context_len + chunk.num_rows) * params.num_heads * head_dim / 16;
  }
  return job;
}

void CpuBackend::RunUnit(const AttentionJob& job, const AttentionUnit& unit, int thread) {
  AttentionArgs args = ArgsOf(unit, job.common, job.group, job.layout, job.layer);
  args.scratch = attention_scratch_.data() + thread * AttentionScratchFloats(args.head_dim);
  kernels_.attention(args);
}

// A few rows: not worth a job.
void CpuBackend::RunMerges(const AttentionJob& job) {
  for (const AttentionMerge& merge : merges_) {
    kernels_.merge_attention(ArgsOf(merge.unit, job.common, job.group, job.layout, job.layer), merge.num_pieces);
  }
}

void CpuBackend::Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks,
                           const KvView& kv, const AttentionParams& params, float* out, int64_t out_stride) {
  const AttentionJob job = BeginAttention(layer, q, q_stride, chunks, kv, params, out, out_stride);
  const int num_units = static_cast<int>(units_.size());
  const int tasks = job.work < kWorthSplitting ? std::min(num_units, 1) : std::min(num_units, ThreadPool::kMaxTasks);
  pool_.Run(tasks, [&](int task, int thread) {
    const int end = static_cast<int>(int64_t{num_units} * (task + 1) / tasks);
    for (int i = static_cast<int>(int64_t{num_units} * task / tasks); i < end; ++i) RunUnit(job, units_[i], thread);
  });
  RunMerges(job);
}

}  // namespace baton::kernels::cpu
