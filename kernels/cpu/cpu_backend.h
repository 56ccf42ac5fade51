// The Backend that runs on the CPU: splits each operation into independent pieces of rows, outputs or heads (never of a
// reduction), and runs them on a thread pool with the kernels of one instruction set.
#ifndef BATON_KERNELS_CPU_CPU_BACKEND_H_
#define BATON_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_arena.h"

namespace baton::kernels::cpu {

// Thread contract: as Backend. The methods' contracts are in kernels/backend.h.
class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, const Backend::Options& options, int num_threads);

  std::string name() const override { return std::string("cpu/") + kernels_.name; }
  NumericsClass numerics() const override { return numerics_; }
  absl::StatusOr<std::unique_ptr<WeightMatrix>> PackWeights(const HostTensor& tensor) override;
  void ReadRow(const WeightMatrix& weight, int64_t row, float* out) const override;
  void MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) override;
  void RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
               int64_t y_stride) override;
  void Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim, std::span<const int32_t> positions,
            const RopeTable& table) override;
  void WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               std::span<const SequenceChunk> chunks, const KvView& kv) override;
  void Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks, const KvView& kv,
                 const AttentionParams& params, float* out, int64_t out_stride) override;
  void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m,
                       int dim) override;
  void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) override;

 private:
  // Some rows of one chunk, some query heads of one KV head.
  struct AttentionUnit {
    const SequenceChunk* chunk;
    int kv_head;
    int head_begin, head_end;  // within the KV head's group
    int row_begin, row_end;    // within the chunk
    int only_piece = -1;       // of the context; -1: all of it
    int64_t record = 0;        // the first of its query heads' records, if one piece
  };
  struct AttentionMerge {
    AttentionUnit unit;
    int num_pieces;
  };

  // Calls fn(begin, end, thread) over pieces of [0, n), in parallel when `work` (about nanoseconds) is worth it.
  template <typename Fn>
  void ForRange(int64_t n, int64_t work, const Fn& fn);
  // Row r at x + r * x_stride, for all rows.
  void Quantize(const float* x, int64_t x_stride, int m, int64_t cols);
  void RoundToBf16(const float* x, int64_t x_stride, int m, int64_t cols);
  void PlanAttention(std::span<const SequenceChunk> chunks, int num_kv_heads, int group, int sliding_window);
  AttentionArgs ArgsOf(const AttentionUnit& unit, const AttentionArgs& common, int group, const KvLayout& layout,
                       int layer);

  const KernelTable& kernels_;
  const NumericsClass numerics_;
  const WeightLayout weight_layout_;
  ThreadPool pool_;
  WeightArena arena_;
  QuantizedRows quantized_;
  AlignedBuffer<uint8_t> quantized_memory_;
  RoundedRows rounded_;
  AlignedBuffer<uint8_t> rounded_memory_;
  AlignedBuffer<uint8_t> matmul_scratch_;  // one piece per thread
  std::vector<AttentionUnit> units_;
  std::vector<AttentionMerge> merges_;
  int64_t num_attention_records_ = 0;
  AlignedBuffer<float> attention_records_;
  AlignedBuffer<float> attention_scratch_;  // one piece per thread
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_CPU_BACKEND_H_
