// What each GPU of a worker holds (`baton plan --tensor-parallel`): by the rules of the worker's loader and of its backend
// (model/device_demand.h, kernels/cuda/tensor_split.h), and refused where those refuse it. Nothing is loaded, and no GPU is
// asked.
#ifndef BATON_CLI_GPU_PLAN_H_
#define BATON_CLI_GPU_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/plan.h"
#include "kernels/device_space.h"
#include "model/config.h"
#include "model/gguf.h"

namespace baton::cli {

struct GpuPlanOptions {
  kernels::TensorParallel split;
  bool fp8 = false;             // numerics: matrices become E4M3
  uint64_t context = 0;         // positions that rotary angles are kept for
  uint64_t batch_tokens = 512;  // max_batch_tokens
};

// INVALID_ARGUMENT: numbers that are not tensor_parallel's and reduction_slices'. FAILED_PRECONDITION: a model that cannot be
// split so, with the tensor or the heads. OUT_OF_RANGE: shapes or a context that no model has.
absl::StatusOr<GpuMemory> GpuMemoryOf(const model::GgufFile& file, const model::ModelConfig& config,
                                      const GpuPlanOptions& options);
// Of a model that is no file yet: its matrices in `weights_dtype`, one of BitsOf's but for fp4, which is INVALID_ARGUMENT; int8
// and int4 are Q8_0 and Q4_0.
absl::StatusOr<GpuMemory> GpuMemoryOf(const ModelShape& shape, absl::string_view weights_dtype, GpuPlanOptions options);

}  // namespace baton::cli

#endif  // BATON_CLI_GPU_PLAN_H_
