// Attention over paged keys and values. kernels.h has the API, kernels/README.md the order of operations,
// attention_unit.cuh the work of a block, attention_tensor.cuh that on tensor cores.
#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/attention_unit.cuh"

namespace baton::kernels::cuda {
namespace {

// The blocks on a multiprocessor of 64K registers leave 96 and 64 of them to a thread. Left to choose, ptxas takes fewer on
// sm_80 to sm_89, and spills.
constexpr int kPrefillBlocks = 5, kDecodeBlocks = 8;

template <DType kDType>
__global__ void __launch_bounds__(kThreads, kPrefillBlocks) PrefillKernel(const Paged p) {
  Worker<kDType, kPrefillQueries> worker(p, p.a.units[blockIdx.x], blockIdx.y);
  worker.LoadQueries();
  const int first = worker.VisibleBegin(worker.first_position()) / kAttentionPiece * kAttentionPiece;
  for (int piece = first; piece < worker.end(); piece += kAttentionPiece) {
    worker.Piece(piece);
    worker.Merge(piece);
  }
  worker.StoreResult();
}

__device__ __forceinline__ float* RecordOf(const Paged& p, const AttentionUnit& unit, int piece, int kv_head, int kv_heads) {
  return p.a.records +
         ((unit.record + piece) * kv_heads + kv_head) * kDecodeQueries * AttentionRecordFloats(p.head_dim);
}

template <DType kDType>
__global__ void __launch_bounds__(kThreads, kDecodeBlocks) DecodeKernel(const Paged p) {
  const AttentionUnit unit = p.a.units[blockIdx.x];
  const int piece = static_cast<int>(blockIdx.z);
  if (piece >= unit.num_pieces) return;
  Worker<kDType, kDecodeQueries> worker(p, unit, blockIdx.y);
  worker.LoadQueries();
  worker.Piece((unit.first_piece + piece) * kAttentionPiece);
  worker.StoreRecord(RecordOf(p, unit, piece, blockIdx.y, gridDim.y));
}

template <DType kDType, int kOctets>
__global__ void __launch_bounds__(kTensorPrefillWarps * 32) TensorPrefillKernel(const Paged p) {
  TensorWorker<kDType, kOctets, kTensorPrefillWarps> worker(p, p.a.units[blockIdx.x], blockIdx.y);
  worker.LoadQueries();
  worker.Run(worker.first_tile(), worker.end(), [&](int piece) { worker.Merge(piece); });
  worker.StoreResult();
}

template <DType kDType, int kOctets>
__global__ void __launch_bounds__(32) TensorDecodeKernel(const Paged p) {
  const AttentionUnit unit = p.a.units[blockIdx.x];
  const int piece = static_cast<int>(blockIdx.z), first = (unit.first_piece + piece) * kAttentionPiece;
  if (piece >= unit.num_pieces) return;
  TensorWorker<kDType, kOctets, 1> worker(p, unit, blockIdx.y);
  worker.LoadQueries();
  const int begin = worker.first_tile() > first ? worker.first_tile() : first;
  const int end = worker.end() < first + kAttentionPiece ? worker.end() : first + kAttentionPiece;
  worker.Run(begin, end, [&](int) { worker.StoreRecord(RecordOf(p, unit, piece, blockIdx.y, gridDim.y)); });
}

// A block merges the records of one unit and KV head; a thread has its dimensions, the first 16 the sums too.
__global__ void __launch_bounds__(kThreads) MergeKernel(const Paged p) {
  float(&sums)[kSumLanes] = BlockShared<float[kSumLanes]>();
  const AttentionUnit unit = p.a.units[blockIdx.x];
  const int64_t floats = AttentionRecordFloats(p.head_dim);
  const int t = threadIdx.x;
  for (int query = 0; query < unit.num_heads; ++query) {
    float out[2] = {0, 0}, sum = 0, maximum = kMinusInfinity;
    for (int piece = 0; piece < unit.num_pieces; ++piece) {
      const float* const record = RecordOf(p, unit, piece, blockIdx.y, gridDim.y) + query * floats;
      const float piece_maximum = record[p.head_dim + kSumLanes];
      const float new_maximum = piece_maximum > maximum ? piece_maximum : maximum;
      const float old_factor = ExpNotPositive(maximum - new_maximum), factor = ExpNotPositive(piece_maximum - new_maximum);
      maximum = piece == 0 ? piece_maximum : new_maximum;
      const auto merge = [&](float value, float total) {
        return piece == 0 ? value : fmaf(value, factor, total * old_factor);
      };
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = t + i * kThreads;
        if (d < p.head_dim) out[i] = merge(record[d], out[i]);
      }
      if (t < kSumLanes) sum = merge(record[p.head_dim + t], sum);
    }
    __syncthreads();
    if (t < kSumLanes) sums[t] = sum;
    __syncthreads();
    const float inverse = Worker<DType::kF32, 2>::InverseOf(sums);
    float* const to = p.a.out + unit.row_begin * p.a.out_stride +
                      (int64_t{blockIdx.y} * p.a.group + unit.head_begin + query) * p.head_dim;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = t + i * kThreads;
      if (d < p.head_dim) to[d] = out[i] * inverse;
    }
  }
}

Paged PagedOf(const AttentionArgs& a) {
  const KvLayout& layout = a.kv.layout;
  return {.a = a,
          .keys = a.kv.base + layout.offset(a.layer, false, 0),
          .block_bytes = layout.block_bytes(),
          .head_bytes = layout.head_bytes(),
          .values_after = layout.offset(0, true, 0) - layout.offset(0, false, 0),
          .head_dim = layout.head_dim,
          .block_size = layout.block_size,
          .row_vectors = static_cast<int>(layout.head_dim * layout.element_bytes() / sizeof(uint4))};
}

template <DType kDType, int kQueries>
size_t SharedBytes(const Paged& p, bool totals) {
  return Worker<kDType, kQueries>::SharedBytes(p.head_dim, p.row_vectors, totals);
}

template <typename Fn>
void WithDType(DType dtype, const Fn& fn) {
  if (dtype == DType::kF32) return fn.template operator()<DType::kF32>();
  if (dtype == DType::kBF16) return fn.template operator()<DType::kBF16>();
  fn.template operator()<DType::kF16>();
}

// fn.operator()<dtype, octets>() for 16-bit keys of heads of up to kTensorMaxHeadDim.
template <typename Fn>
void WithShape(const KvLayout& layout, const Fn& fn) {
  const auto of = [&]<DType kDType>() {
    if (layout.head_dim <= 64) return fn.template operator()<kDType, 8>();
    fn.template operator()<kDType, 16>();
  };
  if (layout.dtype == DType::kBF16) return of.template operator()<DType::kBF16>();
  of.template operator()<DType::kF16>();
}

}  // namespace

size_t PrefillAttentionSharedBytes(const KvLayout& layout, bool tensor_cores) {
  const Paged p = PagedOf({.kv = {nullptr, layout}});
  size_t bytes = 0;
  if (tensor_cores) {
    return sizeof(TensorShared) + TensorWorker<DType::kF16, 16, kTensorPrefillWarps>::SharedBytes(p.row_vectors);
  }
  WithDType(layout.dtype, [&]<DType kDType>() { bytes = SharedBytes<kDType, kPrefillQueries>(p, true); });
  return bytes;
}

void PrefillAttention(const AttentionArgs& args, Stream stream) {
  const Paged p = PagedOf(args);
  if (args.tensor_cores) {
    return WithShape(args.kv.layout, [&]<DType kDType, int kOctets>() {
      Launch(TensorPrefillKernel<kDType, kOctets>, dim3(args.num_units, args.kv.layout.num_kv_heads),
             dim3(kTensorPrefillWarps * 32),
             TensorWorker<kDType, kOctets, kTensorPrefillWarps>::SharedBytes(p.row_vectors), stream, p);
    });
  }
  WithDType(args.kv.layout.dtype, [&]<DType kDType>() {
    Launch(PrefillKernel<kDType>, dim3(args.num_units, args.kv.layout.num_kv_heads), dim3(kThreads),
           SharedBytes<kDType, kPrefillQueries>(p, true), stream, p);
  });
}

void DecodeAttention(const AttentionArgs& args, Stream stream) {
  const Paged p = PagedOf(args);
  const dim3 grid(args.num_units, args.kv.layout.num_kv_heads);
  if (args.tensor_cores) {
    WithShape(args.kv.layout, [&]<DType kDType, int kOctets>() {
      Launch(TensorDecodeKernel<kDType, kOctets>, dim3(grid.x, grid.y, args.max_pieces), dim3(32),
             TensorWorker<kDType, kOctets, 1>::SharedBytes(p.row_vectors), stream, p);
    });
    return Launch(MergeKernel, grid, dim3(kThreads), 0, stream, p);
  }
  WithDType(args.kv.layout.dtype, [&]<DType kDType>() {
    Launch(DecodeKernel<kDType>, dim3(grid.x, grid.y, args.max_pieces), dim3(kThreads),
           SharedBytes<kDType, kDecodeQueries>(p, false), stream, p);
  });
  Launch(MergeKernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace baton::kernels::cuda
