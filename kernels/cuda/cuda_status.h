// A device that fails ends the process: what it computed is lost.
#ifndef BATON_KERNELS_CUDA_CUDA_STATUS_H_
#define BATON_KERNELS_CUDA_CUDA_STATUS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

inline void RequireOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "the GPU failed: %s\n", status.ToString().c_str());
  std::abort();
}

template <typename T>
T Require(absl::StatusOr<T> value) {
  RequireOk(value.status());
  return *std::move(value);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CUDA_STATUS_H_
