#include "kernels/backend.h"
#include "kernels/cuda/math.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float ApplyActivation(Activation act, float x) {
  if (act == Activation::kSilu) return x * Sigmoid(x);
  const float cubic = fmaf(x * x * x, 0.044715f, x);
  return x * Sigmoid(cubic * 1.59576912f);
}

__global__ void __launch_bounds__(kThreads)
    GatedKernel(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int dim) {
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= dim) return;
  float& value = gate[blockIdx.x * gate_stride + i];
  value = ApplyActivation(act, value) * up[blockIdx.x * up_stride + i];
}

__global__ void __launch_bounds__(kThreads)
    AddKernel(float* x, int64_t x_stride, const float* y, int64_t y_stride, int dim) {
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i < dim) x[blockIdx.x * x_stride + i] += y[blockIdx.x * y_stride + i];
}

template <int kParts>
__device__ __forceinline__ float TreeSum(const float* part, int64_t part_stride) {
  if constexpr (kParts == 1) {
    return *part;
  } else {
    return TreeSum<kParts / 2>(part, part_stride) + TreeSum<kParts / 2>(part + kParts / 2 * part_stride, part_stride);
  }
}

template <int kParts>
__global__ void __launch_bounds__(kThreads) SumTreeKernel(const float* parts, int dim, float* y, int64_t y_stride) {
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= dim) return;
  y[blockIdx.x * y_stride + i] = TreeSum<kParts>(parts + int64_t{blockIdx.x} * dim + i, int64_t{gridDim.x} * dim);
}

// Element i of a row as the model's file has it.
template <DType kDType>
__device__ __forceinline__ float FileValue(const uint8_t* row, int64_t i) {
  if constexpr (kDType == DType::kF32) return reinterpret_cast<const float*>(row)[i];
  if constexpr (kDType == DType::kF16) return HalfValue(reinterpret_cast<const uint16_t*>(row)[i]);
  if constexpr (kDType == DType::kBF16) return Bf16Value(reinterpret_cast<const uint16_t*>(row)[i]);
  // Blocks of 32: a half as scale, then codes; an even number of bytes, so halves are aligned.
  constexpr int kBlockBytes = kDType == DType::kQ8_0 ? 34 : 18;
  const uint8_t* const block = row + i / 32 * kBlockBytes;
  const int k = static_cast<int>(i % 32);
  const float scale = HalfValue(*reinterpret_cast<const uint16_t*>(block));
  if constexpr (kDType == DType::kQ8_0) return scale * static_cast<float>(static_cast<int8_t>(block[2 + k]));
  const int byte = block[2 + k % 16];
  return scale * static_cast<float>((k < 16 ? byte & 0xf : byte >> 4) - 8);
}

template <DType kDType>
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedArgs a, int64_t row_bytes) {
  const uint8_t* const row = static_cast<const uint8_t*>(a.table) + a.ids[blockIdx.x] * row_bytes;
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i < a.cols) a.out[blockIdx.x * a.out_stride + i] = a.scale * FileValue<kDType>(row, i);
}

}  // namespace

void GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int m, int dim,
                     Stream stream) {
  Launch(GatedKernel, dim3(m, CeilDiv(dim, kThreads)), dim3(kThreads), 0, stream, act, gate, gate_stride, up, up_stride,
         dim);
}

void Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim, Stream stream) {
  Launch(AddKernel, dim3(m, CeilDiv(dim, kThreads)), dim3(kThreads), 0, stream, x, x_stride, y, y_stride, dim);
}

void SumTree(const float* parts, int num_parts, int m, int dim, float* y, int64_t y_stride, Stream stream) {
  const auto launch = [&](auto* kernel) {
    Launch(kernel, dim3(m, CeilDiv(dim, kThreads)), dim3(kThreads), 0, stream, parts, dim, y, y_stride);
  };
  switch (num_parts) {
    case 1:
      return launch(SumTreeKernel<1>);
    case 2:
      return launch(SumTreeKernel<2>);
    case 4:
      return launch(SumTreeKernel<4>);
    case 8:
      return launch(SumTreeKernel<8>);
    case 16:
      return launch(SumTreeKernel<16>);
    case kMaxTreeParts:
      return launch(SumTreeKernel<kMaxTreeParts>);
    default:
      return;  // the caller's to refuse
  }
}

void Embed(const EmbedArgs& args, Stream stream) {
  const auto launch = [&](auto* kernel, int64_t block_elements, int64_t block_bytes) {
    Launch(kernel, dim3(args.m, CeilDiv(args.cols, kThreads)), dim3(kThreads), 0, stream, args,
           args.cols / block_elements * block_bytes);
  };
  switch (args.dtype) {
    case DType::kF32:
      return launch(EmbedKernel<DType::kF32>, 1, 4);
    case DType::kF16:
      return launch(EmbedKernel<DType::kF16>, 1, 2);
    case DType::kBF16:
      return launch(EmbedKernel<DType::kBF16>, 1, 2);
    case DType::kQ8_0:
      return launch(EmbedKernel<DType::kQ8_0>, 32, 34);
    case DType::kQ4_0:
      return launch(EmbedKernel<DType::kQ4_0>, 32, 18);
    default:
      return;  // the caller's to refuse
  }
}

}  // namespace baton::kernels::cuda
