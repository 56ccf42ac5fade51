// How tensor_parallel.h divides weights and KV heads over its ranks: what it takes, and what a rank then holds. Arithmetic of
// shapes, without a device, so that `baton plan` can ask where there is none.
//
// Thread contract: pure functions.
#ifndef BATON_KERNELS_CUDA_TENSOR_SPLIT_H_
#define BATON_KERNELS_CUDA_TENSOR_SPLIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/pack_weights.h"
#include "kernels/device_space.h"

namespace baton::kernels::cuda {

// INVALID_ARGUMENT for numbers that are not TensorParallel's, or more than kMaxTreeParts slices.
absl::Status CheckSplit(const TensorParallel& split);
// FAILED_PRECONDITION: rows are no multiple of the ranks, or inputs none of 32 for each slice. The data is not looked at.
absl::Status CheckSplit(const HostTensor& tensor, const TensorParallel& split);
// FAILED_PRECONDITION: the KV heads are no multiple of the ranks.
absl::Status CheckKvHeads(int num_kv_heads, const TensorParallel& split);

// DeviceSpace's of the same names: what a tensor takes of all ranks together.
uint64_t PackedBytes(const HostTensor& tensor, const TensorParallel& split, WeightStorage storage);
uint64_t PackedRowsBytes(const HostTensor& tensor, const TensorParallel& split);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_TENSOR_SPLIT_H_
