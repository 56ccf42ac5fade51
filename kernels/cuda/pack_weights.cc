#include "kernels/cuda/pack_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/e4m3.h"

namespace baton::kernels::cuda {
namespace {

DType DeviceFormat(DType dtype, WeightStorage storage) {
  if (storage == WeightStorage::kFp8 && dtype != DType::kQ4_0) return kE4m3;
  return MatrixStep(dtype) > 0 ? dtype : DType::kF32;
}

// codes[i] = values[i] / scale; returns the scale.
float EncodeE4m3(const std::vector<float>& values, uint8_t* codes) {
  float largest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(value));
  }
  if (largest == 0) return 1;
  int exponent;  // largest = fraction * 2^exponent, from 1/2 on; 448 = 7/8 * 2^9
  const float fraction = std::frexp(largest, &exponent);
  const int scale = std::max(fraction <= 0.875f ? exponent - 9 : exponent - 8, -126);
  const float inverse = std::ldexp(1.0f, -scale);
  for (size_t i = 0; i < values.size(); ++i) codes[i] = FloatToE4m3(values[i] * inverse);
  return std::ldexp(1.0f, scale);
}

}  // namespace

PackedShape ShapeForDevice(DType dtype, int64_t rows, int64_t cols, WeightStorage storage) {
  PackedShape shape = {.dtype = DeviceFormat(dtype, storage)};
  const int64_t groups = (rows + kMatrixLanes - 1) / kMatrixLanes;
  const int step = MatrixStep(shape.dtype);
  shape.code_bytes = groups * ((cols + step - 1) / step) * kMatrixLanes * 16;
  if (shape.dtype == kE4m3) {
    shape.scale_bytes = groups * kMatrixLanes * static_cast<int64_t>(sizeof(float));
  } else if (BlockElements(shape.dtype) > 1) {
    shape.scale_bytes = groups * (cols / 32) * kMatrixLanes * 2;
  }
  return shape;
}

PackedWeights PackForDevice(const HostTensor& tensor, WeightStorage storage) {
  PackedWeights packed;
  const PackedShape shape = ShapeForDevice(tensor.dtype, tensor.rows, tensor.cols, storage);
  packed.dtype = shape.dtype;
  const bool e4m3 = packed.dtype == kE4m3, convert = packed.dtype != tensor.dtype;
  const int step = MatrixStep(packed.dtype);
  const int64_t block_bytes = BlockBytes(tensor.dtype);
  const int64_t row_bytes = tensor.cols / BlockElements(tensor.dtype) * block_bytes;
  const int64_t steps = (tensor.cols + step - 1) / step;
  const bool scaled = !e4m3 && shape.scale_bytes > 0;
  packed.codes.resize(shape.code_bytes);
  packed.scales.resize(shape.scale_bytes);
  std::vector<uint8_t> row(steps * 16);
  std::vector<float> values(e4m3 ? tensor.cols : 0);
  for (int64_t r = 0; r < tensor.rows; ++r) {
    const uint8_t* const src = static_cast<const uint8_t*>(tensor.data) + r * row_bytes;
    const int64_t group = r / kMatrixLanes, lane = r % kMatrixLanes;
    if (e4m3) {
      DequantizeRow(tensor.dtype, src, values.data(), tensor.cols);
      const float scale = EncodeE4m3(values, row.data());
      std::memcpy(packed.scales.data() + r * sizeof scale, &scale, sizeof scale);
    } else if (scaled) {  // blocks of 32: two bytes of scale, then the codes
      const int64_t code_bytes = block_bytes - 2;
      for (int64_t block = 0; block < tensor.cols / 32; ++block) {
        std::memcpy(packed.scales.data() + ((group * (tensor.cols / 32) + block) * kMatrixLanes + lane) * 2,
                    src + block * block_bytes, 2);
        std::memcpy(row.data() + block * code_bytes, src + block * block_bytes + 2, code_bytes);
      }
    } else if (convert) {
      DequantizeRow(tensor.dtype, src, reinterpret_cast<float*>(row.data()), tensor.cols);
    } else {
      std::memcpy(row.data(), src, row_bytes);
    }
    for (int64_t s = 0; s < steps; ++s) {
      std::memcpy(packed.codes.data() + ((group * steps + s) * kMatrixLanes + lane) * 16, row.data() + s * 16, 16);
    }
  }
  return packed;
}

void UnpackE4m3Row(const PackedWeights& packed, int64_t cols, int64_t row, float* out) {
  const int64_t step = MatrixStep(kE4m3), steps = (cols + step - 1) / step;
  const int64_t group = row / kMatrixLanes, lane = row % kMatrixLanes;
  float scale;
  std::memcpy(&scale, packed.scales.data() + row * sizeof scale, sizeof scale);
  for (int64_t k = 0; k < cols; ++k) {
    out[k] = scale * E4m3ToFloat(packed.codes[((group * steps + k / step) * kMatrixLanes + lane) * 16 + k % step]);
  }
}

}  // namespace baton::kernels::cuda
