#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/packed_matrix.h"

namespace baton::kernels::cpu {
namespace {

// One that ResolveIsa gave.
const KernelTable& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx512Bf16:
      return Avx512Bf16Kernels();
    case Isa::kAmx:
      return AmxKernels();
    case Isa::kAuto:
    case Isa::kScalar:
      break;
  }
  return ScalarKernels();
}

constexpr int64_t kWorthSplitting = 4000;  // nanoseconds of work below which waking the other threads costs more
constexpr int kTasksPerThread = 4;         // so that a late thread's share can be taken over

const PackedMatrix& Packed(const MatMulOutput& output) { return static_cast<const PackedMatrix&>(*output.weight); }

}  // namespace

CpuBackend::CpuBackend(const KernelTable& kernels, const Backend::Options& options, int num_threads)
    : kernels_(kernels),
      numerics_(options.numerics),
      weight_layout_(options.weight_layout),
      pool_(num_threads, options.cores) {}

template <typename Fn>
void CpuBackend::ForRange(int64_t n, int64_t work, const Fn& fn) {
  if (n <= 0) return;
  const int64_t wanted = work < kWorthSplitting ? 1 : int64_t{pool_.num_threads()} * kTasksPerThread;
  const int tasks = static_cast<int>(std::min({n, wanted, int64_t{ThreadPool::kMaxTasks}}));
  pool_.Run(tasks, [&](int task, int thread) { fn(n * task / tasks, n * (task + 1) / tasks, thread); });
}

absl::StatusOr<std::unique_ptr<WeightMatrix>> CpuBackend::PackWeights(const HostTensor& tensor) {
  std::unique_ptr<PackedMatrix> matrix = PackedMatrix::Allocate(tensor, numerics_, weight_layout_, &arena_);
  if (matrix == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a weight of ", tensor.rows, " x ", tensor.cols, " in ", Name(tensor.dtype),
                     "; use a smaller model or quantization, or free memory on this machine"));
  }
  ForRange(matrix->num_panels(), matrix->rows() * matrix->cols(),
           [&](int64_t begin, int64_t end, int) { matrix->PackPanels(tensor, begin, end); });
  return matrix;
}

void CpuBackend::ReadRow(const WeightMatrix& weight, int64_t row, float* out) const {
  static_cast<const PackedMatrix&>(weight).ReadRow(row, out);
}

void CpuBackend::Quantize(const float* x, int64_t x_stride, int m, int64_t cols) {
  const size_t elements = static_cast<size_t>(m) * cols;
  quantized_.rows = m;
  quantized_.cols = cols;
  quantized_.cells = quantized_memory_.Reserve(elements / kQuantGroup * kActivationCellBytes + 1024);
  ForRange(m, static_cast<int64_t>(elements / 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.quantize_row(x + r * x_stride, r, quantized_);
  });
}

void CpuBackend::RoundToBf16(const float* x, int64_t x_stride, int m, int64_t cols) {
  rounded_.rows = m;
  rounded_.cols = cols;
  rounded_.pairs = rounded_memory_.Reserve(m * ((cols + 1) / 2) * kernels_.rounded_pair_bytes);
  ForRange(m, m * cols / 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.round_row(x + r * x_stride, r, rounded_);
  });
}

void CpuBackend::MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) {
  if (m <= 0 || outputs.empty()) return;
  pool_.PinCaller();
  int64_t num_panels = 0;
  bool any_integer = false, any_rounded = false;
  for (const MatMulOutput& output : outputs) {
    num_panels += Packed(output).num_panels();
    any_integer |= IsIntegerLayout(Packed(output).panels(m).layout);
    any_rounded |= Packed(output).panels(m).layout == PackedLayout::kBf16Dot;
  }
  const int64_t cols = Packed(outputs[0]).cols();
  const int64_t scratch_bytes = ExpandScratchBytes(cols);
  if (any_integer) {
    Quantize(x, x_stride, m, cols);
    matmul_scratch_.Reserve(scratch_bytes * pool_.num_threads());
  }
  if (any_rounded) RoundToBf16(x, x_stride, m, cols);
  // In units of panels that the kernels compute together.
  const int64_t unit = any_rounded ? kSuperPanels : 2;
  ForRange((num_panels + unit - 1) / unit, num_panels * cols / 8 * m, [&](int64_t from, int64_t to, int thread) {
    const int64_t begin = from * unit, end = std::min(to * unit, num_panels);
    int64_t first = 0;  // panel number of the output's panel 0
    for (const MatMulOutput& output : outputs) {
      const PackedMatrix& weight = Packed(output);
      const int64_t panel_begin = std::max<int64_t>(begin - first, 0);
      const int64_t panel_end = std::min(end - first, weight.num_panels());
      first += weight.num_panels();
      if (panel_begin >= panel_end) continue;
      MatMulArgs args;
      const PanelSet& panels = weight.panels(m);
      args.panels = panels.panel(0);
      args.panel_bytes = panels.panel_bytes;
      args.rows = weight.rows();
      args.cols = cols;
      args.x = x;
      args.x_stride = x_stride;
      args.quantized = quantized_;
      args.rounded = rounded_;
      args.m = m;
      args.scratch = matmul_scratch_.data() + thread * scratch_bytes;
      args.bias = output.bias;
      args.y = output.y;
      args.y_stride = output.y_stride;
      kernels_.matmul[static_cast<int>(panels.layout)](args, panel_begin, panel_end);
    }
  });
}

void CpuBackend::RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
                         int64_t y_stride) {
  ForRange(m, int64_t{m} * dim / 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      kernels_.rms_norm(x + r * x_stride, dim, weight, epsilon, y + r * y_stride);
    }
  });
}

void CpuBackend::Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim,
                      std::span<const int32_t> positions, const RopeTable& table) {
  const int64_t half = table.rope_dim / 2;
  ForRange(m, int64_t{m} * num_heads * head_dim / 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t offset = positions[r] * half;
      kernels_.rope(x + r * x_stride, num_heads, head_dim, table.cos + offset, table.sin + offset, table.rope_dim,
                    table.style);
    }
  });
}

void CpuBackend::WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                         std::span<const SequenceChunk> chunks, const KvView& kv) {
  const KvLayout& layout = kv.layout;
  const size_t token_bytes = layout.element_bytes() * layout.head_dim;
  for (const SequenceChunk& chunk : chunks) {
    const int64_t work = int64_t{chunk.num_rows} * layout.num_kv_heads * layout.head_dim / 2;
    ForRange(chunk.num_rows, work, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const int position = chunk.context_len + static_cast<int>(r);
        std::byte* const block = kv.block(chunk.block_table[position / layout.block_size]);
        const size_t slot = static_cast<size_t>(position % layout.block_size) * token_bytes;
        const int64_t row = chunk.row_begin + r;
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          const int64_t source = int64_t{head} * layout.head_dim;
          kernels_.store_kv(layout.dtype, k + row * k_stride + source, layout.head_dim,
                            block + layout.offset(layer, false, head) + slot);
          kernels_.store_kv(layout.dtype, v + row * v_stride + source, layout.head_dim,
                            block + layout.offset(layer, true, head) + slot);
        }
      }
    });
  }
}

void CpuBackend::GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                                 int m, int dim) {
  ForRange(m, int64_t{m} * dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.gated(act, gate + r * gate_stride, up + r * up_stride, dim);
  });
}

void CpuBackend::Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) {
  ForRange(m, int64_t{m} * dim / 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.add(x + r * x_stride, y + r * y_stride, dim);
  });
}

}  // namespace baton::kernels::cpu

namespace baton::kernels {

absl::StatusOr<std::unique_ptr<Backend>> Backend::CreateCpu(const Options& options) {
  constexpr int kMaxThreads = 1024;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads, "; it must be 0 (one per core) to ", kMaxThreads));
  }
  const absl::StatusOr<Isa> isa = cpu::ResolveIsa(options.isa, cpu::ThisCpu());
  if (!isa.ok()) return isa.status();
  const int num_threads = options.num_threads > 0
                              ? options.num_threads
                              : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  for (const int core : options.cores) {
    if (!cpu::ThreadPool::CanPinTo(core)) {
      return absl::InvalidArgumentError(absl::StrCat("cores names ", core, ", which this process may not use here"));
    }
  }
  return std::make_unique<cpu::CpuBackend>(cpu::KernelsOf(*isa), options, num_threads);
}

}  // namespace baton::kernels
