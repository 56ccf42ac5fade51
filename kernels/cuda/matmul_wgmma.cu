// Products of the class kBf16 on Hopper's tensor cores: those of matmul_bf16.cu, in the same order of steps of 16 inputs,
// by another instruction. Whether a GPU gives a step the same bits in both is not known, so all rows of a GPU that has
// this one go through it, few or many.
//
// Weights are the 64 rows of a, from registers, where each format becomes bf16; inputs are b, from shared memory, where
// RoundInputs' octets are what a matrix descriptor without swizzling wants. So an output has one order whatever the
// number of inputs' rows in b is: 8 to 192 here.
//
// Few rows: each warpgroup streams weights of 32 outputs for a piece of its own; each warp has 8 of them, as the upper
// half of its 16 rows, so that all four share the work of unpacking (the tensor cores have time: the memory has not).
// Many: a block of two warpgroups has a tile of 128 outputs by 128 or 192 rows; sums of a piece are added to totals in
// registers. Both alternate between two sets of fragments: while the tensor cores multiply with one, the threads
// unpack the other.
//
// A stage is 64 inputs: two of CopyStage's.
#include "kernels/cuda/matmul_bf16.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kWideInputs = 2 * kStageInputs;  // of a stage here
[[maybe_unused]] constexpr int kPieceStages = kBf16Piece / kWideInputs;
constexpr int kSharedPerMultiprocessor = 226 << 10;  // 228 KB, of which each block costs one more than it asks for

[[maybe_unused]] __device__ __forceinline__ int WideStagesOf(int64_t inputs) {
  return static_cast<int>((inputs + kWideInputs - 1) / kWideInputs);
}

// A ring of stages in shared memory: each is two halves of kGroups groups of outputs and kN rows of inputs.
template <DType kDType, int kGroups, int kN>
struct Ring {
  static constexpr int kInputsAt = kGroups * GroupStage<kDType>::kBytes;  // in a half
  static constexpr int kHalfBytes = kInputsAt + kN / kOctet * kOctetBytes;
  static constexpr int kStageBytes = 2 * kHalfBytes;

  template <int kThreads>
  __device__ __forceinline__ static void Copy(const Bf16MatMulArgs& a, int64_t group, int64_t octet, int64_t k0, int thread,
                                              std::byte* to) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      CopyStage<kDType, kGroups, kN / kOctet, kThreads>(a, group, octet, k0 + half * kStageInputs, thread,
                                                        to + half * kHalfBytes);
    }
  }

  // Begins the products of a half with fragments a of it, as one group.
  __device__ __forceinline__ static void Multiply(const std::byte* half, const uint32_t (&a)[2][4], float (&acc)[kN / 2]) {
    const uint64_t inputs = MatrixDescriptor(half + kInputsAt, 128, kOctetBytes);
    WgmmaFence();
    Wgmma<kN>(acc, a[0], inputs);
    Wgmma<kN>(acc, a[1], inputs + (256 >> 4));  // the octets' next 16 inputs
    WgmmaCommit();
  }
};

// The number of this thread's warp in the block, which the compiler then knows to be the warp's.
[[maybe_unused]] __device__ __forceinline__ int WarpIndex() {
  return __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x / 32), 0);
}

// Fragments of 8 of a group's outputs and a half's inputs: rows 0 to 7; the others are zeros.
template <DType kDType>
__device__ __forceinline__ void LoadEight(const std::byte* half, int first, uint32_t (&a)[2][4]) {
  const int lane = threadIdx.x % 32;
  uint32_t loaded[4];  // of inputs [8i, 8i + 8)
  if constexpr (kDType == DType::kBF16) {
    LoadMatrices(half + (lane / 8 * kMatrixLanes + first + lane % 8) * 16, loaded);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) loaded[i] = WeightPair<kDType>(half, first + lane / 4, 8 * i + lane % 4 * 2);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[i][0] = loaded[2 * i];
    a[i][1] = 0;
    a[i][2] = loaded[2 * i + 1];
    a[i][3] = 0;
  }
}

template <DType kDType, int kN>
struct FewShape {
  using Stages = Ring<kDType, 1, kN>;
  static constexpr int kMostWarpgroups = kN <= 32 ? 4 : 2;  // of a block
  static constexpr int kSumStride = kMatrixLanes + 4;       // so that a warp's sums go to different banks
  static constexpr int kSumBytes = kN * kSumStride * 4;
  static constexpr int Fit(int blocks) {
    return (kSharedPerMultiprocessor / blocks / kMostWarpgroups - kSumBytes) / Stages::kStageBytes;
  }
  // Two blocks on a multiprocessor, if they have enough each.
  static constexpr int kFit = Fit(2) >= 4 ? Fit(2) : Fit(1);
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static constexpr int kBytes = kStages * Stages::kStageBytes + kSumBytes;  // of a warpgroup: stages, then sums
  static_assert(kStages >= 3);
};

// A block has 32 outputs of kN rows; piece p is warpgroup p % warpgroups's.
template <int kFormat, int kN>
__global__ void __launch_bounds__(FewShape<DType{kFormat}, kN>::kMostWarpgroups* kWarpgroup)
    FewRowsWgmmaKernel(Bf16MatMulArgs a) {
#ifdef BATON_HAS_WGMMA
  constexpr DType kDType{kFormat};
  using S = FewShape<kDType, kN>;
  using Stages = typename S::Stages;
  const int warp = WarpIndex(), lane = threadIdx.x % 32, warpgroup = warp / 4, warpgroups = blockDim.x / kWarpgroup;
  std::byte* const shared = DynamicShared<std::byte>();
  std::byte* const ring = shared + warpgroup * S::kBytes;
  const int64_t octet = int64_t{blockIdx.x} * (kN / kOctet), group = blockIdx.y;
  const int pieces = static_cast<int>((a.weight.cols + kBf16Piece - 1) / kBf16Piece);
  const int rounds = (pieces + warpgroups - 1) / warpgroups;
  // Of stage t of this warpgroup, which goes through a piece in each round.
  const auto first_input = [&](int t) {
    return (int64_t{t / kPieceStages} * warpgroups + warpgroup) * kBf16Piece + t % kPieceStages * kWideInputs;
  };
  const auto copy = [&](int t) {
    const int64_t k0 = first_input(t);
    if (k0 < a.weight.cols) {
      Stages::template Copy<kWarpgroup>(a, group, octet, k0, threadIdx.x % kWarpgroup,
                                        ring + t % S::kStages * Stages::kStageBytes);
    }
    CommitCopies();
  };
  for (int t = 0; t < S::kStages - 2; ++t) copy(t);
  float acc[kN / 2] = {};
  uint32_t first[2][4], second[2][4];
  for (int round = 0; round < rounds; ++round) {
    const int64_t left = a.weight.cols - first_input(round * kPieceStages);
    const int stages = left <= 0 ? 0 : left < kBf16Piece ? WideStagesOf(left) : kPieceStages;
    for (int t = round * kPieceStages; t < round * kPieceStages + stages; ++t) {
      WaitForCopies<S::kStages - 3>();
      ProxyFence();
      SyncWarpgroup(warpgroup);  // stage t is there for all; products with stage t - 2 are done
      copy(t + S::kStages - 2);
      const std::byte* const stage = ring + t % S::kStages * Stages::kStageBytes;
      LoadEight<kDType>(stage, warp % 4 * 8, first);
      Stages::Multiply(stage, first, acc);
      WgmmaWait<1>();
      LoadEight<kDType>(stage + Stages::kHalfBytes, warp % 4 * 8, second);
      Stages::Multiply(stage + Stages::kHalfBytes, second, acc);
      WgmmaWait<1>();
    }
    WgmmaWait<0>();
    HoldAccumulators(acc);
    float* const sums = reinterpret_cast<float*>(ring + S::kStages * Stages::kStageBytes);  // [kN][kSumStride]
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      if (i / 2 % 2 == 0) sums[(i / 4 * kOctet + lane % 4 * 2 + i % 2) * S::kSumStride + warp % 4 * 8 + lane / 4] = acc[i];
      acc[i] = 0;
    }
    __syncthreads();
    const int first_piece = round * warpgroups;
    for (int i = threadIdx.x; i < kN * kMatrixLanes; i += blockDim.x) {
      const int row = i / kMatrixLanes, output = i % kMatrixLanes;
      const int64_t y_row = octet * kOctet + row, y_output = group * kMatrixLanes + output;
      if (y_row >= a.m || y_output >= a.weight.rows) continue;
      float* const y = a.y + y_row * a.y_stride + y_output;
      float total = first_piece == 0 ? 0 : *y;
      for (int w = 0; w < warpgroups && first_piece + w < pieces; ++w) {
        const float sum = reinterpret_cast<const float*>(shared + w * S::kBytes +
                                                         S::kStages * Stages::kStageBytes)[row * S::kSumStride + output];
        total = first_piece + w == 0 ? sum : total + sum;
      }
      if (first_piece + warpgroups >= pieces) total = WithScaleAndBias<kDType>(a, y_output, total);
      *y = total;
    }
    __syncthreads();
  }
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

constexpr int kTileGroups = 4, kTileWarpgroups = 2;

template <DType kDType, int kN>
struct TileShape {
  using Stages = Ring<kDType, kTileGroups, kN>;
  static constexpr int kFit = kSharedPerMultiprocessor / Stages::kStageBytes;
  static constexpr int kStages = kFit < 6 ? kFit : 6;
  static constexpr int kBytes = kStages * Stages::kStageBytes;
  static_assert(kStages >= 3);
};

template <int kFormat, int kN>
__global__ void __launch_bounds__(kTileWarpgroups* kWarpgroup, 1) TileWgmmaKernel(Bf16MatMulArgs a) {
#ifdef BATON_HAS_WGMMA
  constexpr DType kDType{kFormat};
  using S = TileShape<kDType, kN>;
  using Stages = typename S::Stages;
  std::byte* const ring = DynamicShared<std::byte>();
  const int64_t octet = int64_t{blockIdx.x} * (kN / kOctet), group = int64_t{blockIdx.y} * kTileGroups;
  const int warp = WarpIndex(), lane = threadIdx.x % 32;
  const int num_stages = WideStagesOf(a.weight.cols);
  const auto copy = [&](int t) {
    if (t < num_stages) {
      Stages::template Copy<kTileWarpgroups * kWarpgroup>(a, group, octet, int64_t{t} * kWideInputs, threadIdx.x,
                                                          ring + t % S::kStages * Stages::kStageBytes);
    }
    CommitCopies();
  };
  // Fragments of the warp's 16 outputs.
  const auto load = [&](const std::byte* half, uint32_t(&fragments)[2][4]) {
    const std::byte* const weights = half + warp / 2 * GroupStage<kDType>::kBytes;
#pragma unroll
    for (int k16 = 0; k16 < 2; ++k16) LoadWeights<kDType>(weights, warp % 2, k16, fragments[k16]);
  };
  for (int t = 0; t < S::kStages - 2; ++t) copy(t);
  float acc[kN / 2] = {}, total[kN / 2];
  uint32_t first[2][4], second[2][4];
  for (int begin = 0; begin < num_stages; begin += kPieceStages) {
    const int end = begin + kPieceStages < num_stages ? begin + kPieceStages : num_stages;
    for (int t = begin; t < end; ++t) {
      WaitForCopies<S::kStages - 3>();
      ProxyFence();
      __syncthreads();  // stage t is there for all; products with stage t - 2 are done
      copy(t + S::kStages - 2);
      const std::byte* const stage = ring + t % S::kStages * Stages::kStageBytes;
      load(stage, first);
      Stages::Multiply(stage, first, acc);
      WgmmaWait<1>();
      load(stage + Stages::kHalfBytes, second);
      Stages::Multiply(stage + Stages::kHalfBytes, second, acc);
      WgmmaWait<1>();
    }
    WgmmaWait<0>();
    HoldAccumulators(acc);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      total[i] = begin == 0 ? acc[i] : total[i] + acc[i];
      acc[i] = 0;
    }
  }
  const int64_t first_row = octet * kOctet + lane % 4 * 2, first_output = group * kMatrixLanes + 16 * warp + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int64_t row = first_row + i / 4 * kOctet + i % 2, output = first_output + i / 2 % 2 * 8;
    if (row >= a.m || output >= a.weight.rows) continue;
    a.y[row * a.y_stride + output] = WithScaleAndBias<kDType>(a, output, total[i]);
  }
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

template <DType kDType, int kN>
void LaunchFewRows(const Bf16MatMulArgs& a, Stream stream) {
  using S = FewShape<kDType, kN>;
  const unsigned pieces = CeilDiv(a.weight.cols, kBf16Piece);
  const unsigned warpgroups = pieces < S::kMostWarpgroups ? pieces : S::kMostWarpgroups;
  Launch(FewRowsWgmmaKernel<FormatNumber(kDType), kN>, dim3(CeilDiv(a.m, kN), CeilDiv(a.weight.rows, kMatrixLanes)),
         dim3(warpgroups * kWarpgroup), warpgroups * S::kBytes, stream, a);
}

template <DType kDType, int kN>
void LaunchTile(const Bf16MatMulArgs& a, Stream stream) {
  // Blocks that share weights run at the same time.
  const dim3 grid(CeilDiv(a.m, kN), CeilDiv(a.weight.rows, kTileGroups * kMatrixLanes));
  Launch(TileWgmmaKernel<FormatNumber(kDType), kN>, grid, dim3(kTileWarpgroups * kWarpgroup), TileShape<kDType, kN>::kBytes,
         stream, a);
}

template <DType kDType>
void WgmmaMatMulOf(const Bf16MatMulArgs& a, Stream stream) {
  if (a.m <= 8) return LaunchFewRows<kDType, 8>(a, stream);
  if (a.m <= 16) return LaunchFewRows<kDType, 16>(a, stream);
  if (a.m <= 32) return LaunchFewRows<kDType, 32>(a, stream);
  if (a.m <= kBf16FewRows) return LaunchFewRows<kDType, 64>(a, stream);
  // A tile's cost, estimated: its products, and as much as 64 rows for the weights.
  const unsigned narrow = CeilDiv(a.m, 128) * (128 + 64), wide = CeilDiv(a.m, 192) * (192 + 64);
  if (narrow < wide) return LaunchTile<kDType, 128>(a, stream);
  LaunchTile<kDType, 192>(a, stream);
}

}  // namespace

bool HasWgmma() {
#ifndef __CUDACC__
  return cuda_emulator::HasWgmma();
#elif defined(BATON_CUDA_SM_90A)
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
#else
  return false;
#endif
}

void WgmmaMatMul(const Bf16MatMulArgs& args, Stream stream) {
  if (args.weight.dtype == kE4m3) return WgmmaMatMulOf<kE4m3>(args, stream);
  switch (args.weight.dtype) {
    case DType::kF32:
      return WgmmaMatMulOf<DType::kF32>(args, stream);
    case DType::kF16:
      return WgmmaMatMulOf<DType::kF16>(args, stream);
    case DType::kBF16:
      return WgmmaMatMulOf<DType::kBF16>(args, stream);
    case DType::kQ8_0:
      return WgmmaMatMulOf<DType::kQ8_0>(args, stream);
    case DType::kQ4_0:
      return WgmmaMatMulOf<DType::kQ4_0>(args, stream);
    default:
      return;
  }
}

}  // namespace baton::kernels::cuda
