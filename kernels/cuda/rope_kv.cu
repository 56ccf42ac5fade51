// One block a row and head: query heads, then key heads, then value heads. Thread i has pair i.
#include "kernels/cuda/math.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 64;

// What the device needs of a KvLayout.
struct KvPlace {
  std::byte* base;
  size_t block_bytes, head_bytes, layer_offset;
  int block_size, num_kv_heads;
  DType dtype;
};

// Writes element d of a head's row.
struct HeadRow {
  float* values;   // query heads: in place
  std::byte* kept;  // key and value heads: in their block
  DType dtype;

  __device__ void Put(int d, float value) const {
    if (values != nullptr) {
      values[d] = value;
    } else if (dtype == DType::kF32) {
      reinterpret_cast<float*>(kept)[d] = value;
    } else {
      reinterpret_cast<uint16_t*>(kept)[d] = dtype == DType::kF16 ? HalfOf(value) : Bf16Of(value);
    }
  }
};

__device__ void RotateRow(const RopeKvArgs& a, const float* in, int64_t row, const HeadRow& out) {
  const int half = a.rope_dim / 2;
  const int32_t* const rows = a.rope_rows != nullptr ? a.rope_rows : a.positions;
  const int64_t angles = (rows != nullptr ? rows[row] : row) * half;
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const int first = a.interleaved ? 2 * i : i;
    const int second = a.interleaved ? 2 * i + 1 : i + half;
    const float x = in[first], y = in[second], cos = a.cos[angles + i], sin = a.sin[angles + i];
    out.Put(first, x * cos - y * sin);
    out.Put(second, x * sin + y * cos);
  }
  for (int d = 2 * half + threadIdx.x; d < a.head_dim; d += kThreads) out.Put(d, in[d]);
}

__global__ void __launch_bounds__(kThreads) RopeWriteKvKernel(RopeKvArgs a, KvPlace kv, int num_q) {
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  if (head < num_q) {
    float* const q = a.q + row * a.q_stride + head * a.head_dim;
    RotateRow(a, q, row, {q, nullptr, DType::kF32});
    return;
  }
  if (a.block_ids[row] < 0) return;
  const bool is_value = head - num_q >= kv.num_kv_heads;
  const int kv_head = (head - num_q) % kv.num_kv_heads;
  const size_t token_bytes = kv.head_bytes / kv.block_size;
  const int slot = a.positions[row] % kv.block_size;
  std::byte* const kept = kv.base + a.block_ids[row] * kv.block_bytes + kv.layer_offset +
                          (head - num_q) * kv.head_bytes + slot * token_bytes;
  const HeadRow out = {nullptr, kept, kv.dtype};
  const float* const in = is_value ? a.v + row * a.v_stride + kv_head * a.head_dim
                                   : a.k + row * a.k_stride + kv_head * a.head_dim;
  if (!is_value && a.cos != nullptr) {
    RotateRow(a, in, row, out);
  } else {
    for (int d = threadIdx.x; d < a.head_dim; d += kThreads) out.Put(d, in[d]);
  }
}

}  // namespace

void RopeWriteKv(const RopeKvArgs& args, Stream stream) {
  const KvLayout& layout = args.kv.layout;
  const int num_q = args.q != nullptr && args.cos != nullptr ? args.num_heads : 0;
  KvPlace place = {};
  if (args.k != nullptr) {
    place = {args.kv.base,      layout.block_bytes(), layout.head_bytes(), layout.offset(args.layer, false, 0),
             layout.block_size, layout.num_kv_heads,  layout.dtype};
  }
  const int heads = num_q + 2 * place.num_kv_heads;
  Launch(RopeWriteKvKernel, dim3(args.m, heads), dim3(kThreads), 0, stream, args, place, num_q);
}

}  // namespace baton::kernels::cuda
