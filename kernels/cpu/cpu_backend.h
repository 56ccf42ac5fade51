// The Backend that runs on the CPU: splits each operation into independent pieces of rows, outputs or heads (never of a
// reduction), and runs them on a thread pool with the kernels of one instruction set.
#ifndef BATON_KERNELS_CPU_CPU_BACKEND_H_
#define BATON_KERNELS_CPU_CPU_BACKEND_H_

#include <algorithm>
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
  void SelfAttention(const SelfAttentionArgs& args) override;
  void GatedMatMul(const GatedMatMulArgs& args) override;
  void ResidualMatMul(const ResidualMatMulArgs& args) override;

  // Barriers of all threads so far, of which a call has one for each region that is worth splitting.
  uint32_t num_barriers() const { return pool_.num_barriers(); }

 private:
  // Rows that products read, in the forms that their weights want; floats are read from x.
  struct ProductInput {
    const float* x = nullptr;
    int64_t x_stride = 0;
    int m = 0;
    int64_t cols = 0;
    bool wants_floats = false, wants_quantized = false, wants_rounded = false;
    QuantizedRows quantized;
    RoundedRows rounded;
    AlignedBuffer<uint8_t> quantized_memory, rounded_memory;
  };
  struct Range {
    int64_t begin, end;
  };
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

  // What the calls of one attention have in common; its units and merges are members.
  struct AttentionJob {
    AttentionArgs common;
    KvLayout layout;
    int layer = 0;
    int group = 0;     // query heads of a KV head
    int64_t work = 0;  // nanoseconds, about
  };

  // Work, in nanoseconds, below which waking the other threads costs more.
  static constexpr int64_t kWorthSplitting = 4000;
  static constexpr int kTasksPerThread = 4;  // so that a late thread's share can be taken over

  // Calls fn(begin, end, thread) over pieces of [0, n), in parallel when `work` (about nanoseconds) is worth it.
  template <typename Fn>
  void ForRange(int64_t n, int64_t work, const Fn& fn) {
    if (n <= 0) return;
    const int64_t wanted = work < kWorthSplitting ? 1 : int64_t{pool_.num_threads()} * kTasksPerThread;
    const int tasks = static_cast<int>(std::min({n, wanted, int64_t{ThreadPool::kMaxTasks}}));
    pool_.Run(tasks, [&](int task, int thread) { fn(n * task / tasks, n * (task + 1) / tasks, thread); });
  }

  // Makes `in` the rows x as these weights want them, still to be prepared, and room for its products.
  void BeginInput(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs, ProductInput* in);
  // Columns of one row, from `values` on, in the other forms: whole groups of kQuantGroup.
  void PrepareColumns(const ProductInput& in, int64_t row, Range columns, const float* values) const;
  // All of it. With a norm (`from` not null) the rows of `from` are normed into x first.
  void PrepareInput(const ProductInput& in, const float* from, const Norm& norm);
  // Panels that the kernels compute together.
  static int64_t PanelsAtATime(const ProductInput& in) { return in.wants_rounded ? kSuperPanels : 2; }
  // Rows that are worked on together, whose prepared form fits the second-level cache: whole blocks of them.
  int64_t RowsAtATime(const ProductInput& in) const;
  // rows.begin is a multiple of RowsAtATime, rows.end too or m. With a tile the outputs go there, to [rows,
  // TileStride(panels)].
  void Multiply(const ProductInput& in, const MatMulOutput& output, Range rows, Range panels, int thread,
                float* tile = nullptr);
  static int64_t TileStride(Range panels);

  // Calls fn(rows, panels, tiles, thread) for tiles of a product, as ForRange: so that what is done with the outputs finds
  // them in the cache, and rows of them side by side (README.md). `tiles` has room for num_outputs tiles, tile_floats_ apart.
  template <typename Fn>
  void ForTiles(const ProductInput& in, int64_t num_panels, int num_outputs, const Fn& fn);
  void ReserveTiles(int64_t floats, int num_outputs);

  void StoreKv(const KvView& kv, int layer, bool is_value, int head, const SequenceChunk& chunk, int row_in_chunk,
               const float* values);
  void ProjectHead(const SelfAttentionArgs& args, int kv_head, int index, int thread);
  AttentionJob BeginAttention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks,
                              const KvView& kv, const AttentionParams& params, float* out, int64_t out_stride);
  void RunUnit(const AttentionJob& job, const AttentionUnit& unit, int thread);
  void RunMerges(const AttentionJob& job);
  void PlanAttention(std::span<const SequenceChunk> chunks, int num_kv_heads, int group, int sliding_window);
  AttentionArgs ArgsOf(const AttentionUnit& unit, const AttentionArgs& common, int group, const KvLayout& layout,
                       int layer);

  const KernelTable& kernels_;
  const NumericsClass numerics_;
  const WeightLayout weight_layout_;
  ThreadPool pool_;
  WeightArena arena_;
  ProductInput input_;
  ProductInput next_input_;                    // a fused call's output, as the next call reads it
  const WeightMatrix* next_weight_ = nullptr;  // whose form that is; null: there is none
  AlignedBuffer<uint8_t> matmul_scratch_;      // one piece per thread
  AlignedBuffer<float> tiles_;                 // one piece per thread
  int64_t tile_floats_ = 0;
  std::unique_ptr<Latch[]> heads_ready_;       // of each KV head: queries, keys and values of all rows
  int num_heads_ready_ = 0;                    // room in it
  std::vector<AttentionUnit> units_;
  std::vector<AttentionMerge> merges_;
  int64_t num_attention_records_ = 0;
  AlignedBuffer<float> attention_records_;
  AlignedBuffer<float> attention_scratch_;  // one piece per thread
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_CPU_BACKEND_H_
