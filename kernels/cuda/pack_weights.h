// Packs a weight of a model's file as the device reads it (device_matrix.h); on the host.
#ifndef BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
#define BATON_KERNELS_CUDA_PACK_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device_matrix.h"

namespace baton::kernels::cuda {

struct PackedWeights {
  DType dtype = DType::kF32;  // or kE4m3
  std::vector<uint8_t> codes, scales;
};

// kFp8: all but Q4_0, which is smaller, becomes kE4m3.
enum class WeightStorage { kOwnBits, kFp8 };

// The same values: a format that the device does not have becomes F32. In E4M3: each to the nearest (FloatToE4m3) multiple of
// the row's scale, the least power of two, from 2^-126 on, with which the row's largest magnitude is at most 448; a row of
// zeros has 1. A row with an infinity or NaN has the scale NaN, so that its outputs are.
PackedWeights PackForDevice(const HostTensor& tensor, WeightStorage storage = WeightStorage::kOwnBits);

// What PackForDevice makes of a tensor of this format and shape, without looking at its data.
struct PackedShape {
  DType dtype = DType::kF32;  // or kE4m3
  int64_t code_bytes = 0, scale_bytes = 0;
};
PackedShape ShapeForDevice(DType dtype, int64_t rows, int64_t cols, WeightStorage storage = WeightStorage::kOwnBits);

// out[0, cols) = row `row` of weights in E4M3, as kernels take it: the scalar reference.
void UnpackE4m3Row(const PackedWeights& packed, int64_t cols, int64_t row, float* out);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
