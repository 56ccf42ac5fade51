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

}  // namespace

CpuBackend::CpuBackend(const KernelTable& kernels, const Backend::Options& options, int num_threads)
    : kernels_(kernels),
      numerics_(options.numerics),
      weight_layout_(options.weight_layout),
      pool_(num_threads, options.cores) {}

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

void CpuBackend::StoreKv(const KvView& kv, int layer, bool is_value, int head, const SequenceChunk& chunk,
                         int row_in_chunk, const float* values) {
  const KvLayout& layout = kv.layout;
  const int position = chunk.context_len + row_in_chunk;
  const size_t slot = static_cast<size_t>(position % layout.block_size) * layout.element_bytes() * layout.head_dim;
  kernels_.store_kv(layout.dtype, values, layout.head_dim,
                    kv.block(chunk.block_table[position / layout.block_size]) + layout.offset(layer, is_value, head) + slot);
}

void CpuBackend::WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                         std::span<const SequenceChunk> chunks, const KvView& kv) {
  const KvLayout& layout = kv.layout;
  for (const SequenceChunk& chunk : chunks) {
    const int64_t work = int64_t{chunk.num_rows} * layout.num_kv_heads * layout.head_dim / 2;
    ForRange(chunk.num_rows, work, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = chunk.row_begin + r;
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          const int64_t source = int64_t{head} * layout.head_dim;
          StoreKv(kv, layer, false, head, chunk, static_cast<int>(r), k + row * k_stride + source);
          StoreKv(kv, layer, true, head, chunk, static_cast<int>(r), v + row * v_stride + source);
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
