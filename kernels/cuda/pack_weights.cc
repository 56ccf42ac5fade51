#include "kernels/cuda/pack_weights.h"

#include <cstring>

namespace baton::kernels::cuda {

PackedWeights PackForDevice(const HostTensor& tensor) {
  PackedWeights packed;
  packed.dtype = MatrixStep(tensor.dtype) > 0 ? tensor.dtype : DType::kF32;
  const bool convert = packed.dtype != tensor.dtype;
  const int step = MatrixStep(packed.dtype);
  const int64_t block_bytes = BlockBytes(tensor.dtype);
  const int64_t row_bytes = tensor.cols / BlockElements(tensor.dtype) * block_bytes;
  const int64_t groups = (tensor.rows + kMatrixLanes - 1) / kMatrixLanes;
  const int64_t steps = (tensor.cols + step - 1) / step;
  const bool scaled = BlockElements(packed.dtype) > 1;
  packed.codes.resize(groups * steps * kMatrixLanes * 16);
  if (scaled) packed.scales.resize(groups * (tensor.cols / 32) * kMatrixLanes * 2);
  std::vector<uint8_t> row(steps * 16);
  for (int64_t r = 0; r < tensor.rows; ++r) {
    const uint8_t* const src = static_cast<const uint8_t*>(tensor.data) + r * row_bytes;
    const int64_t group = r / kMatrixLanes, lane = r % kMatrixLanes;
    if (scaled) {  // blocks of 32: two bytes of scale, then the codes
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

}  // namespace baton::kernels::cuda
