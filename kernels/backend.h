// The seam between the model and a device. The forward pass (model/transformer.cc) is written once against it.
//
// Contract of every implementation: the value of each output element is a pure function of its own row's inputs, reduced
// in one fixed order. It does not depend on how many rows are in the call, on chunk boundaries, on thread count or on
// which instruction set of the same numerics class ran. (kernels/README.md describes the orders.)
//
// Thread contract: one caller at a time (the engine thread). Implementations use their own threads inside a call.
// Arrays are row-major f32 with the given row stride in elements; rows and outputs must not alias unless said.
#ifndef BATON_KERNELS_BACKEND_H_
#define BATON_KERNELS_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/dtype.h"
#include "kernels/kv_view.h"

namespace baton::kernels {

// Classes whose results may differ from one another in the last bits; workers of different classes never pair.
// kF32: weights dequantized to f32, f32 FMA. kInt: activations quantized per 32 elements to int8, integer dot products
// (F32, F16 and BF16 weights still compute in f32); attention in f32. kBf16: as kInt, but products with BF16 weights
// round the activations to bfloat16 and are what vdpbf16ps computes.
enum class NumericsClass { kF32, kInt, kBf16 };
// "f32", "int", "bf16": the name in settings and in the fingerprint that workers compare.
absl::string_view Name(NumericsClass numerics);
std::optional<NumericsClass> NumericsFromName(absl::string_view name);

// kAvx512Bf16: kAvx512 with vdpbf16ps. kAmx: kAvx512 with integer products of many rows on AMX tiles. All give the same
// bits within one class.
enum class Isa { kAuto, kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };
// From the name in settings: auto, scalar, avx2, avx512, avx512_bf16 or amx.
std::optional<Isa> IsaFromName(absl::string_view name);

// How weights lie in memory; results are the same bit for bit. kDecode: in their own bits, in the order in which one row
// streams them (the fastest for few rows; many rows expand 4-bit codes as they go). kPrefill: as compute tiles, 4-bit
// codes expanded to 8. kBoth: few rows use the first, many the second; formats that are the same in both are held once.
enum class WeightLayout { kDecode, kPrefill, kBoth };

// Which part of a weight each of several devices holds, for a backend of several (kernels/cuda/tensor_parallel.h); others hold
// all of it. kRows: some of the output features. kColumns: some of the inputs, so that products are sums over devices.
enum class WeightSplit { kNone, kRows, kColumns };

// A weight as the model file has it: `rows` output features of `cols` inputs each, one row after the other.
struct HostTensor {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;  // not owned; need not outlive PackWeights
  WeightSplit split = WeightSplit::kNone;
};

// A weight in the backend's own layout.
class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual size_t memory_bytes() const = 0;
};

// One product of MatMul: y[m, weight->rows()] (row stride y_stride) = x * weight^T (+ bias, if any).
struct MatMulOutput {
  const WeightMatrix* weight = nullptr;
  const float* bias = nullptr;  // [rows] or null
  float* y = nullptr;
  int64_t y_stride = 0;
};

enum class RopeStyle { kInterleaved, kHalves };  // pairs (2i, 2i+1), or (i, i + rope_dim/2)

// cos and sin of position p and pair i at [p * rope_dim/2 + i]; computed once by the model, in double, then rounded.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rope_dim = 0;
  RopeStyle style = RopeStyle::kHalves;
};

enum class Activation { kSilu, kGeluTanh };

struct AttentionParams {
  int num_heads = 0;       // query heads; head h reads KV head h / (num_heads / num_kv_heads)
  float scale = 0;         // of q . k
  int sliding_window = 0;  // > 0: position p sees (p - sliding_window, p]; 0: all of [0, p]
  float logit_softcap = 0; // > 0: cap * tanh(score / cap)
};

class Backend {
 public:
  struct Options {
    Isa isa = Isa::kAuto;
    NumericsClass numerics = NumericsClass::kInt;
    int num_threads = 0;  // 0: one per core
    WeightLayout weight_layout = WeightLayout::kDecode;
    std::vector<int> cores;  // compute thread i is pinned to cores[i % size]; empty: not pinned
  };
  // INVALID_ARGUMENT when the CPU lacks a forced instruction set (the message lists what it has) or
  // a core.
  static absl::StatusOr<std::unique_ptr<Backend>> CreateCpu(const Options& options);

  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu/avx512"
  virtual NumericsClass numerics() const = 0;

  // Never null; the tensor was validated by the loader (cols is a multiple of the format's block).
  // RESOURCE_EXHAUSTED when there is no memory for it; FAILED_PRECONDITION when the backend cannot split it.
  virtual absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) = 0;

  // out[0, cols) = row `row` of a packed weight, the same bits as DequantizeRow of the file's row.
  virtual void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const = 0;

  // All outputs share the input x[m, cols] (row stride x_stride), so that it is quantized once.
  virtual void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) = 0;

  // y[r] = x[r] / rms(x[r]) * weight, over dim elements. y may be x. Used for whole rows and, with m = rows * heads, for
  // per-head norms.
  virtual void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
                       int64_t y_stride) = 0;

  // Rotates x[m, num_heads, head_dim] in place, row r at positions[r].
  virtual void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
                    const RopeTable& table) = 0;

  // Stores k and v rows ([num_kv_heads, head_dim] each, row strides given) of all chunks in `layer` of their blocks.
  virtual void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                       std::span<const SequenceChunk> chunks, const KvView& kv) = 0;

  // out[r, num_heads, head_dim] = softmax(scale * q . K) V over the positions row r sees. Reads keys and values only
  // from the blocks (WriteKv of this layer came before).
  virtual void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks,
                         const KvView& kv, const AttentionParams& params, float* out, int64_t out_stride) = 0;

  // gate[r, i] = act(gate[r, i]) * up[r, i]
  virtual void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                               int m, int dim) = 0;

  // x[r, i] += y[r, i]
  virtual void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) = 0;

  // A layer in four calls, for backends that can do better than one elementary call after the other: SelfAttention,
  // ResidualMatMul, GatedMatMul, ResidualMatMul. Each is the composition of elementary calls that its implementation here
  // shows, with the same bits. Where a call has a `next`, that is the weight whose ResidualMatMul comes next and reads this
  // call's output, unchanged: so the output can be brought into that weight's form here, and need not be in the array. Null:
  // none, it is there.

  // RmsNorm's weight and epsilon; a null weight: no norm.
  struct Norm {
    const float* weight = nullptr;
    float epsilon = 0;
  };

  // Norm of the rows, products with q, k and v, norm of each query and key head, rotation, KV to its blocks, attention.
  struct SelfAttentionArgs {
    int m = 0, dim = 0;
    const float* x = nullptr;  // [m, dim], dense
    Norm norm;
    float* normed = nullptr;  // [m, dim], dense; scratch
    MatMulOutput q, k, v;     // y: scratch
    Norm q_norm, k_norm;
    std::span<const int32_t> positions;  // Rope's
    RopeTable rope;
    int layer = 0;
    std::span<const SequenceChunk> chunks;
    KvView kv;
    AttentionParams params;
    float* out = nullptr;  // Attention's
    int64_t out_stride = 0;
    const WeightMatrix* next = nullptr;
  };
  virtual void SelfAttention(const SelfAttentionArgs& args);

  // Norm of the rows, products with gate and up, gate.y = act(gate.y) * up.y.
  struct GatedMatMulArgs {
    int m = 0, dim = 0;
    const float* x = nullptr;  // [m, dim], dense
    Norm norm;
    float* normed = nullptr;  // [m, dim], dense; scratch
    MatMulOutput gate, up;    // gate.y is the output; up.y: scratch
    Activation activation = Activation::kSilu;
    const WeightMatrix* next = nullptr;
  };
  virtual void GatedMatMul(const GatedMatMulArgs& args);

  // x += norm(input * weight^T).
  struct ResidualMatMulArgs {
    int m = 0;
    const float* input = nullptr;  // [m, weight->cols()]
    int64_t input_stride = 0;
    MatMulOutput product;  // y: scratch
    Norm norm;
    float* x = nullptr;  // [m, weight->rows()], dense
  };
  virtual void ResidualMatMul(const ResidualMatMulArgs& args);
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_BACKEND_H_
