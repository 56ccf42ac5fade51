// Which block of threads computes what of an attention call; on the host.
#ifndef BATON_KERNELS_CUDA_ATTENTION_PLAN_H_
#define BATON_KERNELS_CUDA_ATTENTION_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/kv_view.h"

namespace baton::kernels::cuda {

struct AttentionPlan {
  std::vector<AttentionUnit> prefill;  // units of AttentionArgs
  std::vector<AttentionUnit> decode;
  std::vector<int32_t> block_tables;   // of all chunks, one after the other
  int max_pieces = 0;                  // of a decode unit
  int64_t record_floats = 0;           // AttentionArgs::records
};

// group: query heads of a KV head. sliding_window: 0 for none. tensor_cores: of AttentionArgs.
AttentionPlan PlanAttention(std::span<const SequenceChunk> chunks, const KvLayout& layout, int group,
                            int sliding_window, bool tensor_cores = false);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_PLAN_H_
