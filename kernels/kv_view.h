// How KV bytes lie in memory, and views that kernels read and write them through.
#ifndef BATON_KERNELS_KV_VIEW_H_
#define BATON_KERNELS_KV_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace baton::kernels {

// One block holds `block_size` token positions of every layer: [layer][K then V][kv_head][token][head_dim].
// All layers of a block are contiguous, so one block is one transfer; one head of one layer is contiguous, so a kernel
// streams it and pools of different head splits can hand over.
struct KvLayout {
  DType dtype = DType::kF16;  // kF32, kF16 or kBF16
  int block_size = 16;        // tokens
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  static constexpr int kVersion = 1;  // of the order above; part of what two workers compare

  size_t element_bytes() const { return dtype == DType::kF32 ? 4 : 2; }
  // Of one head's keys (or values) in one block of one layer.
  size_t head_bytes() const { return element_bytes() * block_size * head_dim; }
  size_t layer_bytes() const { return 2 * num_kv_heads * head_bytes(); }
  size_t block_bytes() const { return num_layers * layer_bytes(); }
  // Per token, over all layers: the figure of spec row S7.
  size_t token_bytes() const { return block_bytes() / block_size; }
  // Byte offset in a block of token 0 of `head`'s keys (is_value: values) in `layer`.
  size_t offset(int layer, bool is_value, int head) const {
    return layer * layer_bytes() + (is_value ? num_kv_heads : 0) * head_bytes() + head * head_bytes();
  }
  bool operator==(const KvLayout&) const = default;
};

// The whole pool's memory: block b starts at base + b * layout.block_bytes(). 64-byte aligned. Not owned.
struct KvView {
  std::byte* base = nullptr;
  KvLayout layout;

  std::byte* block(int32_t block_id) const { return base + static_cast<size_t>(block_id) * layout.block_bytes(); }
};

// A run of consecutive positions of one sequence inside a batch: positions [context_len, context_len + num_rows) are
// computed in this pass; their keys and values go to the blocks of block_table; they attend to [0, own position].
struct SequenceChunk {
  int row_begin = 0;                     // first row of the batch
  int num_rows = 0;                      // 1 in decode
  int context_len = 0;                   // positions whose KV is already in the blocks
  std::span<const int32_t> block_table;  // position p lies in block_table[p / block_size], slot p % block_size
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_VIEW_H_
