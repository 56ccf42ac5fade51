// Products of the class kBf16, on tensor cores.
//
// Inputs are rounded to bfloat16 once (RoundInputs). Weights stay in their own bits in memory, and each is rounded to
// nearest even from DequantizeRow's value when it becomes a fragment: so formats of 4 and 8 bits keep their bandwidth,
// and ReadRow its exact rows.
//
// The order of an output, whatever the number of rows: inputs in pieces of kBf16Piece; in a piece, from 0, one m16n8k16
// product after the other in ascending k (inputs past the end are zeros); then the pieces' sums in ascending order, the
// row's scale (weights in E4M3) and the bias. Both kernels below do that, with weights as the 16 rows of a and inputs as
// the 8 columns of b, so which of them runs and where in a tile a row is changes no bit. Few rows: each warp streams
// weights for a piece of its own.
// Many: a block has a tile of 128 outputs by 128 rows, and sums of pieces are added up in y, as registers hold one
// only.
//
// In shared memory, as in global, 8 rows of 16 bytes lie in 128 consecutive ones, so that ldmatrix meets each bank once
// without padding; a stage is 32 inputs, brought by cp.async some stages ahead.
#include "kernels/cuda/matmul_bf16.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kPieceStages = kBf16Piece / kStageInputs;
constexpr size_t kSharedBudget = 80 << 10;  // of a block: sm_86, sm_89 and sm_120 have 99 KB

// Adds the products of a stage: kGroups groups from `weights` on, kOctets octets from `inputs` on.
template <DType kDType, int kGroups, int kOctets>
__device__ __forceinline__ void MultiplyStage(const std::byte* weights, const std::byte* inputs,
                                              float (&acc)[2 * kGroups][kOctets][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k16 = 0; k16 < kStageInputs / 16; ++k16) {
    uint32_t a[2 * kGroups][4];
#pragma unroll
    for (int half = 0; half < 2 * kGroups; ++half) {
      LoadWeights<kDType>(weights + half / 2 * GroupStage<kDType>::kBytes, half % 2, k16, a[half]);
    }
    // Of two octets (with one, the other lanes' rows count for nothing).
    const std::byte* const b_row = inputs + (kOctets > 1 ? lane / 16 * kOctetBytes : 0) + (2 * k16 + lane / 8 % 2) * 128 +
                                   lane % 8 * 16;
#pragma unroll
    for (int o = 0; o < kOctets; o += 2) {
      uint32_t b[4];
      LoadMatrices(b_row + o * kOctetBytes, b);
#pragma unroll
      for (int half = 0; half < 2 * kGroups; ++half) {
        MultiplyAdd(acc[half][o], a[half], b[0], b[1]);
        if constexpr (kOctets > 1) MultiplyAdd(acc[half][o + 1], a[half], b[2], b[3]);
      }
    }
  }
}

// fn(output, row, sum) of what this lane has; sums start anew.
template <int kHalves, int kOctets, typename Fn>
__device__ __forceinline__ void TakeSums(float (&acc)[kHalves][kOctets][4], const Fn& fn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        fn(16 * half + i / 2 * 8 + lane / 4, kOctet * o + lane % 4 * 2 + i % 2, acc[half][o][i]);
        acc[half][o][i] = 0;
      }
    }
  }
}

constexpr int kFewWarps = 4;

template <DType kDType, int kOctets>
struct FewShape {
  static constexpr int kRows = kOctets * kOctet;
  static constexpr int kStageBytes = GroupStage<kDType>::kBytes + kOctets * kOctetBytes;
  static constexpr int kSumStride = kMatrixLanes + 4;  // so that a warp's sums go to different banks
  static constexpr int kSumBytes = kRows * kSumStride * 4;
  static constexpr int kFit = (static_cast<int>(kSharedBudget) / kFewWarps - kSumBytes) / kStageBytes;
  static constexpr int kStages = kFit < 16 ? kFit : 16;
  static constexpr int kWarpBytes = kStages * kStageBytes + kSumBytes;  // stages, then sums
  static_assert(kStages >= 2);
};

// A block has 32 outputs of kOctets octets of rows; piece p is warp p % warps's. Each warp's stages are its own.
template <int kFormat, int kOctets>
__global__ void __launch_bounds__(kFewWarps * 32) FewRowsKernel(Bf16MatMulArgs a) {
  constexpr DType kDType{kFormat};
  using S = FewShape<kDType, kOctets>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  std::byte* const shared = DynamicShared<std::byte>();
  std::byte* const stages = shared + warp * S::kWarpBytes;
  const int64_t octet = int64_t{blockIdx.x} * kOctets, group = blockIdx.y;
  const int pieces = static_cast<int>((a.weight.cols + kBf16Piece - 1) / kBf16Piece);
  const int rounds = (pieces + warps - 1) / warps;
  // Of stage t of this warp, which goes through a piece in each round.
  const auto first_input = [&](int t) {
    return (int64_t{t / kPieceStages} * warps + warp) * kBf16Piece + t % kPieceStages * kStageInputs;
  };
  const auto copy = [&](int t) {
    const int64_t k0 = first_input(t);
    if (k0 < a.weight.cols) {
      CopyStage<kDType, 1, kOctets, 32>(a, group, octet, k0, lane, stages + t % S::kStages * S::kStageBytes);
    }
    CommitCopies();
  };
  for (int t = 0; t < S::kStages - 1; ++t) copy(t);
  float acc[2][kOctets][4] = {};
  for (int t = 0; t < rounds * kPieceStages; ++t) {
    if (first_input(t) < a.weight.cols) {  // else none follows
      WaitForCopies<S::kStages - 2>();
      __syncwarp();
      copy(t + S::kStages - 1);
      const std::byte* const stage = stages + t % S::kStages * S::kStageBytes;
      MultiplyStage<kDType, 1, kOctets>(stage, stage + GroupStage<kDType>::kBytes, acc);
    }
    if ((t + 1) % kPieceStages != 0) continue;
    float* const sums = reinterpret_cast<float*>(stages + S::kStages * S::kStageBytes);  // [kRows][kSumStride]
    TakeSums(acc, [&](int output, int row, float sum) { sums[row * S::kSumStride + output] = sum; });
    __syncthreads();
    const int first_piece = t / kPieceStages * warps;
    for (int i = threadIdx.x; i < S::kRows * kMatrixLanes; i += blockDim.x) {
      const int row = i / kMatrixLanes, output = i % kMatrixLanes;
      const int64_t y_row = octet * kOctet + row, y_output = group * kMatrixLanes + output;
      if (y_row >= a.m || y_output >= a.weight.rows) continue;
      float* const y = a.y + y_row * a.y_stride + y_output;
      float total = first_piece == 0 ? 0 : *y;
      for (int w = 0; w < warps && first_piece + w < pieces; ++w) {
        const float sum = reinterpret_cast<const float*>(shared + w * S::kWarpBytes +
                                                         S::kStages * S::kStageBytes)[row * S::kSumStride + output];
        total = first_piece + w == 0 ? sum : total + sum;
      }
      if (first_piece + warps >= pieces) total = WithScaleAndBias<kDType>(a, y_output, total);
      *y = total;
    }
    __syncthreads();
  }
}

constexpr int kTileGroups = 4, kTileOctets = 16;  // of a block
constexpr int kWarpGroups = 2;                    // of a warp
constexpr int kTileStages = 4;

// A warp's octets: those that registers hold beside what becomes a fragment.
constexpr int WarpOctets(DType dtype) { return dtype == DType::kBF16 ? 8 : 4; }
constexpr int TileThreads(DType dtype) { return kTileGroups / kWarpGroups * (kTileOctets / WarpOctets(dtype)) * 32; }

template <int kFormat>
__global__ void __launch_bounds__(TileThreads(DType{kFormat})) TileKernel(Bf16MatMulArgs a) {
  constexpr DType kDType{kFormat};
  constexpr int kWarpOctets = WarpOctets(kDType), kTileThreads = TileThreads(kDType);
  constexpr int kGroupBytes = GroupStage<kDType>::kBytes;
  constexpr int kStageBytes = kTileGroups * kGroupBytes + kTileOctets * kOctetBytes;
  std::byte* const stages = DynamicShared<std::byte>();
  const int64_t octet = int64_t{blockIdx.x} * kTileOctets, group = int64_t{blockIdx.y} * kTileGroups;
  const int warp = threadIdx.x / 32;
  const int warp_group = warp % (kTileGroups / kWarpGroups) * kWarpGroups;
  const int warp_octet = warp / (kTileGroups / kWarpGroups) * kWarpOctets;
  const int64_t first_row = (octet + warp_octet) * kOctet, first_output = (group + warp_group) * kMatrixLanes;
  const bool needed = first_row < a.m && first_output < a.weight.rows;
  const int num_stages = static_cast<int>(StagesOf(a.weight.cols));
  const auto copy = [&](int t) {
    if (t < num_stages) {
      CopyStage<kDType, kTileGroups, kTileOctets, kTileThreads>(a, group, octet, int64_t{t} * kStageInputs, threadIdx.x,
                                                                stages + t % kTileStages * kStageBytes);
    }
    CommitCopies();
  };
  for (int t = 0; t < kTileStages - 1; ++t) copy(t);
  float acc[2 * kWarpGroups][kWarpOctets][4] = {};
  for (int t = 0; t < num_stages; ++t) {
    WaitForCopies<kTileStages - 2>();
    __syncthreads();  // stage t has arrived for all, and all have used stage t - 1, whose place the next copy takes
    copy(t + kTileStages - 1);
    if (!needed) continue;
    const std::byte* const stage = stages + t % kTileStages * kStageBytes;
    MultiplyStage<kDType, kWarpGroups, kWarpOctets>(stage + warp_group * kGroupBytes,
                                                    stage + kTileGroups * kGroupBytes + warp_octet * kOctetBytes, acc);
    const bool last = t + 1 == num_stages;
    if ((t + 1) % kPieceStages != 0 && !last) continue;
    TakeSums(acc, [&](int output, int row, float sum) {
      if (first_row + row >= a.m || first_output + output >= a.weight.rows) return;
      float* const y = a.y + (first_row + row) * a.y_stride + first_output + output;
      if (t >= kPieceStages) sum = *y + sum;
      *y = last ? WithScaleAndBias<kDType>(a, first_output + output, sum) : sum;
    });
  }
}

constexpr int kRoundThreads = 256;

// A thread has 8 inputs of a row.
__global__ void __launch_bounds__(kRoundThreads) RoundKernel(const float* x, int64_t x_stride, int m, int64_t cols,
                                                              uint4* out) {
  const int64_t i = int64_t{blockIdx.x} * kRoundThreads + threadIdx.x;
  const int64_t per_octet = StagesOf(cols) * (kOctetBytes / 16);
  if (i >= per_octet) return;
  const int64_t row = int64_t{blockIdx.y} * kOctet + i % kOctet, k0 = i / kOctet * 8;
  float values[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) values[k] = row < m && k0 + k < cols ? x[row * x_stride + k0 + k] : 0.0f;
  out[blockIdx.y * per_octet + i] = {Bf16Pair(values[0], values[1]), Bf16Pair(values[2], values[3]),
                                     Bf16Pair(values[4], values[5]), Bf16Pair(values[6], values[7])};
}

template <DType kDType, int kOctets>
void LaunchFewRows(const Bf16MatMulArgs& a, Stream stream) {
  const unsigned pieces = CeilDiv(a.weight.cols, kBf16Piece);
  const unsigned warps = pieces < kFewWarps ? pieces : kFewWarps;
  const dim3 grid(CeilDiv(a.m, kOctets * kOctet), CeilDiv(a.weight.rows, kMatrixLanes));
  Launch(FewRowsKernel<FormatNumber(kDType), kOctets>, grid, dim3(warps * 32),
         warps * FewShape<kDType, kOctets>::kWarpBytes, stream, a);
}

template <DType kDType>
void Bf16MatMulOf(const Bf16MatMulArgs& a, Stream stream) {
  if (a.m <= kOctet) return LaunchFewRows<kDType, 1>(a, stream);
  if (a.m <= 2 * kOctet) return LaunchFewRows<kDType, 2>(a, stream);
  if (a.m <= kBf16FewRows) return LaunchFewRows<kDType, 4>(a, stream);
  constexpr size_t kShared = kTileStages * size_t{kTileGroups * GroupStage<kDType>::kBytes + kTileOctets * kOctetBytes};
  // Blocks that share weights run at the same time.
  const dim3 grid(CeilDiv(a.m, kTileOctets * kOctet), CeilDiv(a.weight.rows, kTileGroups * kMatrixLanes));
  Launch(TileKernel<FormatNumber(kDType)>, grid, dim3(TileThreads(kDType)), kShared, stream, a);
}

}  // namespace

size_t RoundedInputsBytes(int m, int64_t cols) {
  return size_t{CeilDiv(m, kOctet)} * CeilDiv(cols, kStageInputs) * kOctetBytes;
}

void RoundInputs(const float* x, int64_t x_stride, int m, int64_t cols, void* rounded, Stream stream) {
  const int64_t per_octet = int64_t{CeilDiv(cols, kStageInputs)} * (kOctetBytes / 16);
  Launch(RoundKernel, dim3(CeilDiv(per_octet, kRoundThreads), CeilDiv(m, kOctet)), dim3(kRoundThreads), 0, stream, x,
         x_stride, m, cols, static_cast<uint4*>(rounded));
}

void Bf16MatMul(const Bf16MatMulArgs& args, Stream stream) {
  if (args.wgmma) return WgmmaMatMul(args, stream);
  if (args.weight.dtype == kE4m3) return Bf16MatMulOf<kE4m3>(args, stream);
  switch (args.weight.dtype) {
    case DType::kF32:
      return Bf16MatMulOf<DType::kF32>(args, stream);
    case DType::kF16:
      return Bf16MatMulOf<DType::kF16>(args, stream);
    case DType::kBF16:
      return Bf16MatMulOf<DType::kBF16>(args, stream);
    case DType::kQ8_0:
      return Bf16MatMulOf<DType::kQ8_0>(args, stream);
    case DType::kQ4_0:
      return Bf16MatMulOf<DType::kQ4_0>(args, stream);
    default:
      return;
  }
}

}  // namespace baton::kernels::cuda
