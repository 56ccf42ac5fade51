// Memory for packed weights: large pieces on huge pages, shared by many matrices. A model has hundreds of matrices
// below 2 MB; allocated one by one they would lie on 4 KB pages, at whose ends the hardware's prefetcher stops.
#ifndef BATON_KERNELS_CPU_WEIGHT_ARENA_H_
#define BATON_KERNELS_CPU_WEIGHT_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace baton::kernels::cpu {

// Not thread-safe.
class WeightArena {
 public:
  // Zeroed and 64-byte aligned. Keeps its piece of the arena alive, also beyond the arena's own life. Memory returns to
  // the system when all matrices of a piece (32 MB, or one large matrix) are gone. Null when the system gives none.
  std::shared_ptr<uint8_t> Allocate(size_t bytes);

 private:
  std::shared_ptr<uint8_t> chunk_;
  size_t chunk_bytes_ = 0;
  size_t used_ = 0;
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_WEIGHT_ARENA_H_
