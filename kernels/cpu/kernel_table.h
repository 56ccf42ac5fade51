// The kernels of one instruction set. Each set is one source file that instantiates the same templates (*_impl.h) over
// its own vector type, with its own compiler flags; nothing else in the program may be compiled with those flags, so
// the templates call no shared inline functions (the linker could keep the copy that only newer CPUs can run).
#ifndef BATON_KERNELS_CPU_KERNEL_TABLE_H_
#define BATON_KERNELS_CPU_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"

namespace baton::kernels::cpu {

// Activations quantized per 32 elements (a group): x = d * q. Blocks of 16 rows (the last one may be shorter), in them
// one cell after the other, a cell for each group: for all rows of the block
//   int8_t q[rows][32], float d[rows] (amax / 127; NaN if the group has a value that is not finite),
//   float s[rows] (d * sum(q)), int32_t offset[rows] (-128 * sum(q): takes the +128 of 8-bit codes off in integers),
//   int32_t half_offset[rows][2] (the same of each half of the group).
inline constexpr int kActivationBlockRows = 16;
inline constexpr int kActivationCellBytes = 52;  // of one row
struct QuantizedRows {
  int64_t rows = 0, cols = 0;
  uint8_t* cells = nullptr;  // 64-byte aligned; rows * (cols / 32) * kActivationCellBytes bytes, and 1 KB more
};

// Activations rounded to bfloat16 (class kBf16), in pairs of k: blocks of 16 rows as above, in a block for each pair, for
// each row, rounded_pair_bytes of the table whose kernels read it.
struct RoundedRows {
  int64_t rows = 0, cols = 0;
  uint8_t* pairs = nullptr;  // 64-byte aligned; rows * ((cols + 1) / 2) * rounded_pair_bytes bytes
};

// Activations of so many rows stay in the second-level cache while all panels pass over them.
inline constexpr int64_t kActivationCacheBytes = 512 << 10;
inline constexpr int kFewRows = 4;         // up to here a product is limited by memory and streams panel by panel
inline constexpr int kSuperPanels = 4;     // panels that PackedLayout::kBf16Dot interleaves
inline constexpr int kNumMatMulKernels = 11;
inline constexpr int kBf16DotLayout = 10;  // PackedLayout::kBf16Dot

struct MatMulArgs {
  const uint8_t* panels = nullptr;  // PackedMatrix: panel i at panels + i * panel_bytes
  size_t panel_bytes = 0;
  int64_t rows = 0, cols = 0;
  const float* x = nullptr;  // float layouts
  int64_t x_stride = 0;
  QuantizedRows quantized;  // integer layouts
  RoundedRows rounded;      // kBf16Dot
  int m = 0;
  uint8_t* scratch = nullptr;  // ExpandScratchBytes(cols) bytes of this thread, 64-byte aligned
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t first_column = 0;  // the output that y[0] is
};

// Two panels with 8-bit codes and the largest scales.
inline int64_t ExpandScratchBytes(int64_t cols) { return 2 * ((cols / 32 + 1) / 2) * 2 * (128 + 512); }

// One KV head of one sequence chunk, some of its rows.
struct AttentionArgs {
  const float* q = nullptr;  // row 0 of the batch, first query head of the KV head
  float* out = nullptr;
  int64_t q_stride = 0, out_stride = 0;
  int num_heads = 0;  // query heads of this KV head that are computed together
  int head_dim = 0;
  int row_begin = 0, row_end = 0;  // rows of the batch
  int first_position = 0;          // of row_begin
  const int32_t* block_table = nullptr;
  const std::byte* kv_base = nullptr;
  size_t block_bytes = 0;
  size_t k_offset = 0, v_offset = 0;  // of this head's token 0 in a block
  int block_size = 0;
  DType dtype = DType::kF16;
  float scale = 0;
  int sliding_window = 0;
  float logit_softcap = 0;
  float* scratch = nullptr;  // AttentionScratchFloats(...) floats, 64-byte aligned
  // Not negative: only the piece of keys that starts there, whose result goes to piece_records instead of `out`, a record
  // of AttentionRecordFloats for each query. All queries see something of it.
  int only_piece = -1;
  float* piece_records = nullptr;
};

inline constexpr int kKeyTile = 64;               // keys; tiles start at multiples of it
inline constexpr int kKeyPiece = 512;             // keys; pieces are computed on their own, then merged
inline constexpr int kMaxAttentionQueries = 128;  // rows x heads of one call

inline int64_t PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }
// K transposed, V, weights of at most 8 queries; then queries, and outputs, sums and maxima of a piece and of all.
inline int64_t AttentionScratchFloats(int head_dim) {
  return PaddedHeadDim(head_dim) * (2 * kKeyTile + 3 * kMaxAttentionQueries) + 8 * kKeyTile +
         2 * kMaxAttentionQueries * (16 + 1);
}
// Output, sums, maximum; a multiple of a cache line.
inline int64_t AttentionRecordFloats(int head_dim) { return PaddedHeadDim(head_dim) + 32; }

struct KernelTable {
  const char* name;
  // Columns [begin, end) of a row, from x on: whole groups; whole pairs, but for the row's last.
  void (*quantize_row)(const float* x, int64_t row, int64_t begin, int64_t end, const QuantizedRows& out);
  void (*round_row)(const float* x, int64_t row, int64_t begin, int64_t end, const RoundedRows& out);
  int64_t rounded_pair_bytes;
  int64_t activation_cache_bytes;  // kActivationCacheBytes, or these kernels' own
  void (*matmul[kNumMatMulKernels])(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end);  // by PackedLayout
  void (*attention)(const AttentionArgs& args);
  void (*merge_attention)(const AttentionArgs& args, int num_pieces);  // of piece_records, into `out`
  void (*rms_norm)(const float* x, int dim, const float* weight, float epsilon, float* y);
  void (*rope)(float* x, int num_heads, int head_dim, const float* cos, const float* sin, int rope_dim,
               RopeStyle style);
  void (*gated)(Activation act, float* gate, const float* up, int dim);
  void (*add)(float* x, const float* y, int dim);
  void (*store_kv)(DType dtype, const float* src, int n, std::byte* dst);
  void (*exp)(const float* x, float* y, int n);  // the exponential that all kernels use, for its test
};

const KernelTable& ScalarKernels();
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& Avx512Bf16Kernels();
const KernelTable& AmxKernels();

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_KERNEL_TABLE_H_
