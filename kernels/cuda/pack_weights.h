// Packs a weight of a model's file as the device reads it (device_matrix.h); on the host.
#ifndef BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
#define BATON_KERNELS_CUDA_PACK_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device_matrix.h"

namespace baton::kernels::cuda {

struct PackedWeights {
  DType dtype = DType::kF32;
  std::vector<uint8_t> codes, scales;
};

// The same values: a format that the device does not have becomes F32.
PackedWeights PackForDevice(const HostTensor& tensor);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
