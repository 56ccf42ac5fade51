// What the products of the class kBf16 share, on either kind of tensor core: how a stage of weights and inputs comes to
// shared memory, and how weights become fragments there.
#ifndef BATON_KERNELS_CUDA_MATMUL_BF16_CUH_
#define BATON_KERNELS_CUDA_MATMUL_BF16_CUH_

#include "kernels/cuda/weight_format.cuh"

namespace baton::kernels::cuda {

inline constexpr int kStageInputs = 32;  // the most that 16 bytes of weights hold
inline constexpr int kOctet = 8;         // rows of x that lie together
inline constexpr int kOctetBytes = kOctet * kStageInputs * 2;

void WgmmaMatMul(const Bf16MatMulArgs& args, Stream stream);  // Bf16MatMul with args.wgmma

// A group of 32 outputs by kStageInputs inputs in shared memory, in its own bits: the codes, then the scales.
template <DType kDType>
struct GroupStage {
  static constexpr int kStep = MatrixStep(kDType);
  static constexpr int kCodeBytes = kStageInputs / kStep * kMatrixLanes * 16;
  static constexpr int kScaleBytes = WeightFormat<kDType>::kScaled ? kMatrixLanes * 2 : 0;
  static constexpr int kBytes = kCodeBytes + kScaleBytes;
};

__device__ __forceinline__ int64_t StagesOf(int64_t cols) { return (cols + kStageInputs - 1) / kStageInputs; }

// Begins to copy inputs [k0, k0 + kStageInputs) of kGroups groups of outputs and of kOctets octets of rows; this is
// thread `thread` of kThreads. What there is not becomes zeros.
template <DType kDType, int kGroups, int kOctets, int kThreads>
__device__ __forceinline__ void CopyStage(const Bf16MatMulArgs& a, uint32_t group, uint32_t octet, int64_t k0, int thread,
                                          std::byte* to) {
  using S = GroupStage<kDType>;
  constexpr int kChunks = S::kCodeBytes / 16;
  // Of 16 bytes each, so that 32 bits are enough (64 GB).
  const uint32_t groups = static_cast<uint32_t>((a.weight.rows + kMatrixLanes - 1) / kMatrixLanes);
  const uint32_t steps = static_cast<uint32_t>((a.weight.cols + S::kStep - 1) / S::kStep);
  const uint32_t k = static_cast<uint32_t>(k0);
  const auto* const codes = static_cast<const uint4*>(a.weight.codes);
#pragma unroll
  for (int i = thread; i < kGroups * kChunks; i += kThreads) {
    const int g = i / kChunks, chunk = i % kChunks;
    const bool inside = group + g < groups && k / S::kStep + chunk / kMatrixLanes < steps;
    const uint32_t at = ((group + g) * steps + k / S::kStep) * kMatrixLanes + chunk;
    CopyAsync16(to + g * S::kBytes + chunk * 16, codes + (inside ? at : 0), inside);
  }
  if constexpr (S::kScaleBytes > 0) {
    constexpr int kScaleChunks = S::kScaleBytes / 16;
    const auto* const scales = static_cast<const uint4*>(a.weight.scales);
    for (int i = thread; i < kGroups * kScaleChunks; i += kThreads) {
      const int g = i / kScaleChunks, chunk = i % kScaleChunks;
      const bool inside = group + g < groups && k0 < a.weight.cols;
      const uint32_t at = ((group + g) * static_cast<uint32_t>(a.weight.cols / 32) + k / 32) * kScaleChunks + chunk;
      CopyAsync16(to + g * S::kBytes + S::kCodeBytes + chunk * 16, scales + (inside ? at : 0), inside);
    }
  }
  constexpr int kOctetChunks = kOctetBytes / 16;
  const uint32_t stages = static_cast<uint32_t>(StagesOf(a.weight.cols));
  const auto* const rounded = static_cast<const uint4*>(a.rounded);
#pragma unroll
  for (int i = thread; i < kOctets * kOctetChunks; i += kThreads) {
    const bool inside = (octet + i / kOctetChunks) * kOctet < static_cast<uint32_t>(a.m) && k0 < a.weight.cols;
    const uint32_t at = ((octet + i / kOctetChunks) * stages + k / kStageInputs) * kOctetChunks + i % kOctetChunks;
    CopyAsync16(to + kGroups * S::kBytes + i * 16, rounded + (inside ? at : 0), inside);
  }
}

// Inputs k (even) and k + 1 of the stage of output `output` of the group, rounded.
template <DType kDType>
__device__ __forceinline__ uint32_t WeightPair(const std::byte* stage, int output, int k) {
  using S = GroupStage<kDType>;
  const std::byte* const bytes = stage + (k / S::kStep * kMatrixLanes + output) * 16;
  if constexpr (kDType == DType::kF32) {
    const float2 values = *reinterpret_cast<const float2*>(bytes + k % 4 * 4);
    return Bf16Pair(values.x, values.y);
  }
  if constexpr (kDType == DType::kF16) {
    const uint32_t halves = *reinterpret_cast<const uint32_t*>(bytes + k % 8 * 2);
    return Bf16Pair(HalfValue(static_cast<uint16_t>(halves)), HalfValue(static_cast<uint16_t>(halves >> 16)));
  }
  const uint32_t codes = *reinterpret_cast<const uint16_t*>(bytes + k % 16);
  if constexpr (kDType == kE4m3) return Bf16PairOfE4m3(codes);  // scaled by WithScaleAndBias
  const float scale = HalfValue(*reinterpret_cast<const uint16_t*>(stage + S::kCodeBytes + output * 2));
  int low, high;
  if constexpr (kDType == DType::kQ8_0) {
    low = static_cast<int8_t>(codes);
    high = static_cast<int8_t>(codes >> 8);
  } else {
    low = static_cast<int>(codes >> (k / 16 * 4) & 0xf) - 8;
    high = static_cast<int>(codes >> (k / 16 * 4 + 8) & 0xf) - 8;
  }
  return Bf16Pair(scale * static_cast<float>(low), scale * static_cast<float>(high));
}

// y of an output, of the sum over all inputs.
template <DType kDType>
__device__ __forceinline__ float WithScaleAndBias(const Bf16MatMulArgs& a, int64_t output, float sum) {
  if constexpr (kDType == kE4m3) sum *= static_cast<const float*>(a.weight.scales)[output];
  return a.bias != nullptr ? sum + a.bias[output] : sum;
}

// Fragment a of 16 of the group's outputs (the first or second) and 16 of the stage's inputs.
template <DType kDType>
__device__ __forceinline__ void LoadWeights(const std::byte* stage, int half, int k16, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (kDType == DType::kBF16) {
    LoadMatrices(stage + ((2 * k16 + lane / 16) * kMatrixLanes + 16 * half + lane % 16) * 16, a);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = WeightPair<kDType>(stage, 16 * half + i % 2 * 8 + lane / 4, 16 * k16 + i / 2 * 8 + lane % 4 * 2);
    }
  }
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_MATMUL_BF16_CUH_
