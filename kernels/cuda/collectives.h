// What the devices of one process exchange when a model is split over them (tensor_parallel.h). Two implementations, chosen
// when linking: NCCL (nccl_collectives.cc, --config=cuda) and emulator/collectives.cc.
//
// Only bytes move here; sums are our own kernels' (SumTree), because the order in which NCCL adds up is its own affair and
// changes with its version, the number of ranks and the topology.
//
// Thread contract: one thread at a time.
#ifndef BATON_KERNELS_CUDA_COLLECTIVES_H_
#define BATON_KERNELS_CUDA_COLLECTIVES_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {

class Collectives {
 public:
  // Of devices 0 to num_ranks - 1: rank r is device r. UNAVAILABLE with NCCL's message.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(int num_ranks);
  virtual ~Collectives() = default;  // no gather is under way

  // parts[r] is memory of device r: num_ranks parts of `floats`, of which the r-th is its own. On streams[r], behind what was
  // launched there before, all others come from their devices; what is launched there after may also write the own part again.
  // Returns when it is launched. INTERNAL when NCCL refuses or is broken.
  virtual absl::Status AllGather(std::span<float* const> parts, size_t floats, std::span<const Stream> streams) = 0;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_COLLECTIVES_H_
