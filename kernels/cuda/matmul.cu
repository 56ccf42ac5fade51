// Products with weights in their own bits.
//
// The order of an output, whatever the number of rows: inputs in pieces of kInputPiece; in a piece
// acc = fma(w[k], x[k], acc) in ascending k, from 0; then the pieces' sums in ascending order, and the bias. Both kernels
// below do that, so which of them runs changes no bit. Up to kInputPiece inputs it is the CPU's order (class kF32).
//
// Few rows stream the weights once (GemvKernel): a lane has an output, a warp a piece. Many rows share a tile of
// dequantized weights in shared memory (GemmKernel).
#include "kernels/cuda/weight_format.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kGemvWarps = 8;

// acc[r] of one piece of one output.
template <DType kDType, int kRows>
__device__ __forceinline__ void PieceSums(const MatMulArgs& a, const LaneWeights<kDType>& w, int64_t piece, int num_rows,
                                          float (&acc)[kRows]) {
  using Format = WeightFormat<kDType>;
  constexpr int kStep = Format::kStep, kSteps = kInputPiece / kStep;
  const float* const x = a.x + piece * kInputPiece;
  const int64_t left = a.weight.cols - piece * kInputPiece;
  const int inputs = left < kInputPiece ? static_cast<int>(left) : kInputPiece;
#pragma unroll
  for (int r = 0; r < kRows; ++r) acc[r] = 0;
  const int whole = inputs / kStep;
#pragma unroll 2
  for (int s = 0; s < whole; ++s) {
    const uint4 codes = w.Codes(piece * kSteps + s);
    const float scale = w.Scale(piece * kSteps + s);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      const float value = Format::Value(codes, scale, k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < num_rows) acc[r] = fmaf(value, x[r * a.x_stride + s * kStep + k], acc[r]);
      }
    }
  }
  if (whole * kStep == inputs) return;
  const uint4 codes = w.Codes(piece * kSteps + whole);
  const float scale = w.Scale(piece * kSteps + whole);
#pragma unroll
  for (int k = 0; k < kStep; ++k) {
    if (whole * kStep + k >= inputs) break;
    const float value = Format::Value(codes, scale, k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < num_rows) acc[r] = fmaf(value, x[r * a.x_stride + whole * kStep + k], acc[r]);
    }
  }
}

// A block has 32 outputs of up to kRows rows.
template <DType kDType, int kRows>
__global__ void __launch_bounds__(kGemvWarps * 32) GemvKernel(MatMulArgs a) {
  float* const sums = DynamicShared<float>();  // [piece][kRows][32]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int num_rows = a.m - first_row < kRows ? static_cast<int>(a.m - first_row) : kRows;
  a.x += first_row * a.x_stride;
  const LaneWeights<kDType> w(a.weight, blockIdx.x, lane);
  const int64_t pieces = (a.weight.cols + kInputPiece - 1) / kInputPiece;
  for (int64_t piece = warp; piece < pieces; piece += kGemvWarps) {
    float acc[kRows];
    PieceSums<kDType, kRows>(a, w, piece, num_rows, acc);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[(piece * kRows + r) * 32 + lane] = acc[r];
  }
  __syncthreads();
  const int64_t output = int64_t{blockIdx.x} * 32 + lane;
  if (output >= a.weight.rows) return;
  for (int r = warp; r < num_rows; r += kGemvWarps) {
    float total = sums[r * 32 + lane];
    for (int64_t piece = 1; piece < pieces; ++piece) total += sums[(piece * kRows + r) * 32 + lane];
    if (a.bias != nullptr) total += a.bias[output];
    a.y[(first_row + r) * a.y_stride + output] = total;
  }
}

constexpr int kTile = 64;      // outputs, and rows, of a block
constexpr int kTileInputs = 32;  // at a time
constexpr int kTileThreads = 256;
constexpr int kEach = 4;       // outputs by rows of a thread

struct GemmShared {
  float w[kTileInputs][kTile + 4];
  float x[kTileInputs][kTile + 4];
};

// Dequantizes inputs [k0, k0 + 32) of the tile's outputs. Inputs past the end are zeros, and no one reads them.
template <DType kDType>
__device__ __forceinline__ void LoadWeightTile(const DeviceMatrix& m, int64_t first_output, int64_t k0, GemmShared& s) {
  using Format = WeightFormat<kDType>;
  constexpr int kSteps = kTileInputs / Format::kStep;
  const int64_t groups = (m.rows + kMatrixLanes - 1) / kMatrixLanes;
  for (int i = threadIdx.x; i < kTile * kSteps; i += kTileThreads) {
    const int output = i % kTile, step = i / kTile;
    const int64_t group = (first_output + output) / kMatrixLanes;
    const int64_t at = k0 / Format::kStep + step;
    uint4 codes = {};
    float scale = 0;
    if (group < groups && at * Format::kStep < m.cols) {
      const LaneWeights<kDType> w(m, group, output % kMatrixLanes);
      codes = w.Codes(at);
      scale = w.Scale(at);
    }
#pragma unroll
    for (int k = 0; k < Format::kStep; ++k) s.w[step * Format::kStep + k][output] = Format::Value(codes, scale, k);
  }
}

__device__ __forceinline__ void LoadInputTile(const MatMulArgs& a, int64_t first_row, int64_t k0, GemmShared& s) {
  const int k = threadIdx.x % kTileInputs;
  for (int r = threadIdx.x / kTileInputs; r < kTile; r += kTileThreads / kTileInputs) {
    const bool inside = first_row + r < a.m && k0 + k < a.weight.cols;
    s.x[k][r] = inside ? a.x[(first_row + r) * a.x_stride + k0 + k] : 0.0f;
  }
}

__device__ __forceinline__ void TileStep(const GemmShared& s, int k, int output, int row, float (&acc)[kEach][kEach]) {
  const float4 w4 = *reinterpret_cast<const float4*>(&s.w[k][output]);
  const float4 x4 = *reinterpret_cast<const float4*>(&s.x[k][row]);
  const float w[kEach] = {w4.x, w4.y, w4.z, w4.w}, x[kEach] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int o = 0; o < kEach; ++o) acc[r][o] = fmaf(w[o], x[r], acc[r][o]);
  }
}

template <DType kDType>
__global__ void __launch_bounds__(kTileThreads) GemmKernel(MatMulArgs a) {
  GemmShared& s = BlockShared<GemmShared>();
  const int64_t first_output = int64_t{blockIdx.x} * kTile, first_row = int64_t{blockIdx.y} * kTile;
  const int output = threadIdx.x % (kTile / kEach) * kEach, row = threadIdx.x / (kTile / kEach) * kEach;
  // With few rows whole warps have none.
  const bool needed = first_row + row < a.m && first_output + output < a.weight.rows;
  float acc[kEach][kEach] = {}, total[kEach][kEach] = {};
  for (int64_t k0 = 0; k0 < a.weight.cols; k0 += kTileInputs) {
    __syncthreads();  // the last tile has been used
    LoadWeightTile<kDType>(a.weight, first_output, k0, s);
    LoadInputTile(a, first_row, k0, s);
    __syncthreads();
    if (!needed) continue;
    const int64_t left = a.weight.cols - k0;
    if (left >= kTileInputs) {
#pragma unroll 8
      for (int k = 0; k < kTileInputs; ++k) TileStep(s, k, output, row, acc);
    } else {
      for (int k = 0; k < static_cast<int>(left); ++k) TileStep(s, k, output, row, acc);
    }
    const int64_t end = k0 + kTileInputs;
    if (end % kInputPiece != 0 && end < a.weight.cols) continue;
    const bool first = k0 < kInputPiece;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int o = 0; o < kEach; ++o) {
        total[r][o] = first ? acc[r][o] : total[r][o] + acc[r][o];
        acc[r][o] = 0;
      }
    }
  }
  if (!needed) return;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (first_row + row + r >= a.m) break;
    float* const y = a.y + (first_row + row + r) * a.y_stride;
#pragma unroll
    for (int o = 0; o < kEach; ++o) {
      const int64_t at = first_output + output + o;
      if (at < a.weight.rows) y[at] = a.bias != nullptr ? total[r][o] + a.bias[at] : total[r][o];
    }
  }
}

template <int kFormat>
__global__ void __launch_bounds__(kMatrixLanes)
    ReadRowsKernel(DeviceMatrix m, const int32_t* rows, int64_t row, float scale_by, float* out) {
  constexpr DType kDType{kFormat};
  using Format = WeightFormat<kDType>;
  if (rows != nullptr) row = rows[blockIdx.y];  // else there is one
  out += blockIdx.y * m.cols;
  const int64_t step = int64_t{blockIdx.x} * kMatrixLanes + threadIdx.x;
  if (step * Format::kStep >= m.cols) return;
  const LaneWeights<kDType> w(m, row / kMatrixLanes, row % kMatrixLanes);
  const uint4 codes = w.Codes(step);
  const float scale = w.Scale(step);
#pragma unroll
  for (int k = 0; k < Format::kStep; ++k) {
    if (step * Format::kStep + k < m.cols) out[step * Format::kStep + k] = Format::Value(codes, scale, k) * scale_by;
  }
}

template <DType kDType, int kRows>
void LaunchGemv(const MatMulArgs& a, Stream stream) {
  const size_t shared_bytes = CeilDiv(a.weight.cols, kInputPiece) * size_t{kRows} * 32 * sizeof(float);
  Launch(GemvKernel<kDType, kRows>, dim3(CeilDiv(a.weight.rows, 32), CeilDiv(a.m, kRows)), dim3(kGemvWarps * 32),
         shared_bytes, stream, a);
}

template <DType kDType>
void MatMulOf(const MatMulArgs& a, Stream stream) {
  if (a.m <= 1) return LaunchGemv<kDType, 1>(a, stream);
  if (a.m <= 2) return LaunchGemv<kDType, 2>(a, stream);
  if (a.m <= 4) return LaunchGemv<kDType, 4>(a, stream);
  if (a.m <= kGemvMaxRows) return LaunchGemv<kDType, 8>(a, stream);
  Launch(GemmKernel<kDType>, dim3(CeilDiv(a.weight.rows, kTile), CeilDiv(a.m, kTile)), dim3(kTileThreads), 0, stream, a);
}

// fn.operator()<dtype>(); nothing for a format that the device does not have, which is the caller's to refuse. kDeviceOnly:
// formats of the device's own too.
template <bool kDeviceOnly, typename Fn>
void WithFormat(DType dtype, const Fn& fn) {
  if constexpr (kDeviceOnly) {
    if (dtype == kE4m3) return fn.template operator()<kE4m3>();
  }
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<DType::kF32>();
    case DType::kF16:
      return fn.template operator()<DType::kF16>();
    case DType::kBF16:
      return fn.template operator()<DType::kBF16>();
    case DType::kQ8_0:
      return fn.template operator()<DType::kQ8_0>();
    case DType::kQ4_0:
      return fn.template operator()<DType::kQ4_0>();
    default:
      return;
  }
}

void LaunchReadRows(const DeviceMatrix& weight, const int32_t* rows, int64_t row, int m, float scale, float* out,
                    Stream stream) {
  WithFormat<true>(weight.dtype, [&]<DType kDType>() {
    const unsigned steps = CeilDiv(weight.cols, WeightFormat<kDType>::kStep);
    Launch(ReadRowsKernel<FormatNumber(kDType)>, dim3(CeilDiv(steps, kMatrixLanes), m), dim3(kMatrixLanes), 0, stream, weight,
           rows, row, scale, out);
  });
}

}  // namespace

void MatMul(const MatMulArgs& args, Stream stream) {
  WithFormat<false>(args.weight.dtype, [&]<DType kDType>() { MatMulOf<kDType>(args, stream); });
}

void ReadRow(const DeviceMatrix& weight, int64_t row, float* out, Stream stream) {
  LaunchReadRows(weight, nullptr, row, 1, 1, out, stream);
}

void ReadRows(const DeviceMatrix& weight, const int32_t* rows, int m, float scale, float* out, Stream stream) {
  LaunchReadRows(weight, rows, 0, m, scale, out, stream);
}

}  // namespace baton::kernels::cuda
