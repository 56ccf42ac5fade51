// The CUDA kernels as host functions. Each launches on a stream and returns; nothing waits and nothing allocates.
//
// All pointers are device memory. Arrays are row-major f32 with the row stride in elements, as in kernels/backend.h, and
// results have the same bits as the CPU backend's in the class kF32, with one difference that README.md names (products
// of more than 512 inputs). Outputs and inputs must not alias unless said.
//
// Shapes that a kernel cannot run (README.md has the limits) are the caller's to refuse.
#ifndef BATON_KERNELS_CUDA_KERNELS_H_
#define BATON_KERNELS_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_matrix.h"
#include "kernels/kv_view.h"

struct CUstream_st;

// kernels/backend.h is left out: nvcc takes seconds for what it includes.
namespace baton::kernels {
enum class Activation;
}  // namespace baton::kernels

namespace baton::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// y[r] = x[r] / rms(x[r]) * weight. With a residual, x[r] += residual[r] first, which is kept. y may be x without one.
struct RmsNormArgs {
  float* x = nullptr;
  int64_t x_stride = 0;
  const float* residual = nullptr;  // [m, dim] or null
  int64_t residual_stride = 0;
  int m = 0, dim = 0;
  const float* weight = nullptr;
  float epsilon = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void RmsNorm(const RmsNormArgs& args, Stream stream);

// Backend::Rope of q (in place) and of k, and Backend::WriteKv of the rotated k and of v, in one launch. Row r is at
// positions[r] of its sequence (without k and positions: at r), whose block with that position is block_ids[r]. k is only
// read.
struct RopeKvArgs {
  float* q = nullptr;  // [m, num_heads, head_dim]; null: none
  int64_t q_stride = 0;
  const float* k = nullptr;  // [m, num_kv_heads, head_dim]; null: nothing is written to the blocks
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  int m = 0, num_heads = 0, head_dim = 0;
  const int32_t* positions = nullptr;
  const int32_t* block_ids = nullptr;  // with k; -1: nothing of the row is written
  // RopeTable's; cos null: q and k are taken as they are.
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rope_dim = 0;
  bool interleaved = false;
  const int32_t* rope_rows = nullptr;  // row r's angles are the table's row rope_rows[r]; null: positions[r]
  KvView kv;                           // with k
  int layer = 0;
};
void RopeWriteKv(const RopeKvArgs& args, Stream stream);

// gate[r, i] = act(gate[r, i]) * up[r, i]
void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m, int dim,
                     Stream stream);
// x[r, i] += y[r, i]
void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim, Stream stream);
// y[r, i] = the sum over p < num_parts (a power of two up to kMaxTreeParts) of parts[p][r, i], each part a whole [m, dim]
// behind the other, by a balanced binary tree: neighbours first, then pairs of neighbours. So 2^k parts from a multiple of 2^k
// on may be summed before, anywhere. y may be the first part, with y_stride dim.
inline constexpr int kMaxTreeParts = 32;
void SumTree(const float* parts, int num_parts, int m, int dim, float* y, int64_t y_stride, Stream stream);

// out[r] = scale * row ids[r] of the table, whose rows are as in the model's file (F32, F16, BF16, Q8_0 or Q4_0). Each
// id is in range: the caller checks.
struct EmbedArgs {
  DType dtype = DType::kF32;
  const void* table = nullptr;  // 4-byte aligned
  int64_t cols = 0;
  const int32_t* ids = nullptr;
  int m = 0;
  float scale = 1;
  float* out = nullptr;
  int64_t out_stride = 0;
};
void Embed(const EmbedArgs& args, Stream stream);


// y[r] = x[r] * weight^T (+ bias). The order of operations, the same for any m, is in matmul.cu.
struct MatMulArgs {
  const float* x = nullptr;  // [m, weight.cols]
  int64_t x_stride = 0;
  int m = 0;
  DeviceMatrix weight;
  const float* bias = nullptr;  // [weight.rows] or null
  float* y = nullptr;           // [m, weight.rows]
  int64_t y_stride = 0;
};
inline constexpr int kInputPiece = 512;  // inputs that one chain of sums takes
inline constexpr int kGemvMaxRows = 8;   // up to here rows stream the weights, beyond they share tiles
void MatMul(const MatMulArgs& args, Stream stream);
// out[0, cols) = row `row` of the weight, as DequantizeRow gives it.
void ReadRow(const DeviceMatrix& weight, int64_t row, float* out, Stream stream);
// out[r, cols] = scale * row rows[r] of it, r < m.
void ReadRows(const DeviceMatrix& weight, const int32_t* rows, int m, float scale, float* out, Stream stream);

// Products of the class kBf16, on tensor cores (sm_80 and up): both sides rounded to bfloat16, sums in f32. matmul_bf16.cu
// has the order, which is the same for any m; its smallest step is the device's own, and the instruction's.
inline constexpr int kBf16Piece = 1024;     // inputs that one chain of sums takes
inline constexpr int kBf16FewRows = 64;     // up to here each warp streams weights of its own
size_t RoundedInputsBytes(int m, int64_t cols);
// rounded: RoundedInputsBytes, 16-byte aligned. Once for all products of the same inputs.
void RoundInputs(const float* x, int64_t x_stride, int m, int64_t cols, void* rounded, Stream stream);
struct Bf16MatMulArgs {
  const void* rounded = nullptr;  // RoundInputs of m rows of weight.cols
  int m = 0;
  DeviceMatrix weight;
  const float* bias = nullptr;  // [weight.rows] or null
  float* y = nullptr;           // [m, weight.rows]; written several times
  int64_t y_stride = 0;
  bool wgmma = false;           // by matmul_wgmma.cu, for all of a model's products or none; with HasWgmma
};
// Whether the device has warpgroup products (sm_90) and the kernels were compiled for them (sm_90a).
bool HasWgmma();
void Bf16MatMul(const Bf16MatMulArgs& args, Stream stream);


// Attention of Backend, in the order of kernels/README.md: keys in tiles of 64, pieces of kAttentionPiece, both at
// multiples of the absolute position. A prefill unit's block goes through all pieces; of a decode unit each piece is a
// block of its own, whose result is a record, and a second kernel merges the records in ascending order.
inline constexpr int kAttentionPiece = 512;
inline constexpr int kPrefillQueries = 16;  // rows times heads of a unit
inline constexpr int kTensorPrefillQueries = 64;  // likewise, with tensor_cores
inline constexpr int kDecodeQueries = 8;
constexpr int64_t AttentionRecordFloats(int head_dim) { return head_dim + 32; }  // output, sums, maximum

// Consecutive rows of one sequence with some query heads of a KV head; the grid's second dimension is the KV head.
struct AttentionUnit {
  int32_t row_begin = 0, num_rows = 0;  // of the batch
  int32_t first_position = 0;           // of row_begin
  int32_t table_begin = 0;              // of the sequence in block_tables
  int32_t head_begin = 0, num_heads = 0;
  int32_t first_piece = 0, num_pieces = 0;  // decode: pieces that the row sees
  int64_t record = 0;                       // decode: of first_piece
};

struct AttentionArgs {
  const float* q = nullptr;  // [rows, num_heads, head_dim]
  int64_t q_stride = 0;
  float* out = nullptr;      // likewise
  int64_t out_stride = 0;
  KvView kv;
  int layer = 0;
  int group = 0;             // query heads of a KV head; the rest as in AttentionParams
  float scale = 0;
  int sliding_window = 0;
  float logit_softcap = 0;
  const int32_t* block_tables = nullptr;
  const AttentionUnit* units = nullptr;
  int num_units = 0;
  int max_pieces = 0;        // decode
  float* records = nullptr;  // decode: 16-byte aligned
  bool tensor_cores = false; // in the order of attention_tensor.cuh; see TensorCoresAttend
};
// In the class kBf16: keys of 16 bits, and heads whose outputs fit in registers. Others are in f32, prefill and decode.
inline constexpr int kTensorMaxHeadDim = 128;
constexpr bool TensorCoresAttend(const KvLayout& layout) {
  return layout.dtype != DType::kF32 && layout.head_dim <= kTensorMaxHeadDim;
}
void PrefillAttention(const AttentionArgs& args, Stream stream);
// Of shared memory in a block, which not every device has.
size_t PrefillAttentionSharedBytes(const KvLayout& layout, bool tensor_cores);
void DecodeAttention(const AttentionArgs& args, Stream stream);


// XXH3-64 of `bytes` bytes at each of data[0, n), to sums[0, n): what kvtransfer's checksums of blocks are.
inline constexpr int kMaxChecksums = 64;
struct ChecksumArgs {
  const void* data[kMaxChecksums] = {};  // 8-byte aligned
  int n = 0;
  int64_t bytes = 0;  // more than 240, a multiple of 8
  uint64_t* sums = nullptr;
};
void Checksums(const ChecksumArgs& args, Stream stream);


// Draws a token for each row (sample.cu says how it compares with engine/sampler.h). What it has not (penalties, bias,
// top_k, top_p, log-probabilities) is the host's.
struct SampleRow {
  float temperature = 0;  // 0: the largest logit
  float min_p = 0;        // at most 1
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  uint32_t position = 0;  // absolute, of the token to be sampled
};
inline constexpr int kSampleChunk = 1024;
constexpr int64_t NumSampleChunks(int vocab_size) { return (vocab_size + kSampleChunk - 1) / kSampleChunk; }
struct SampleArgs {
  const float* logits = nullptr;  // [m, vocab_size]
  int64_t logits_stride = 0;
  int m = 0, vocab_size = 0;
  const SampleRow* rows = nullptr;  // [m]; null: all greedy
  float* maxima = nullptr;          // [m], scratch
  double* chunk_sums = nullptr;     // [m * NumSampleChunks(vocab_size)], scratch; with rows
  int32_t* token_ids = nullptr;     // [m]; -1: a logit is not finite
};
void Sample(const SampleArgs& args, Stream stream);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KERNELS_H_
