// A model file for `baton plan`: its shape, and what a worker allocates for it, to the byte. The numbers come from the
// worker's own loader, which is run.
#ifndef BATON_CLI_MODEL_FILE_H_
#define BATON_CLI_MODEL_FILE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/plan.h"
#include "kernels/device_space.h"

namespace baton::cli {

struct ModelFileOptions {
  std::string kv_dtype = "f16";
  uint64_t max_context = 0;    // 0: as a worker's default
  uint64_t kv_memory_mib = 0;  // 0: as a worker's default
  std::function<void(absl::string_view phase, double fraction)> progress;
};

struct ModelFile {
  ModelShape shape;
  WorkerMemory memory;
};

// The loader's errors; RESOURCE_EXHAUSTED with the arithmetic when it does not fit into this machine.
absl::StatusOr<ModelFile> LoadModelFile(const std::string& path, const ModelFileOptions& options);

struct ModelFileOnGpus {
  ModelShape shape;
  GpuMemory memory;
};

// The same of a worker over GPUs, from the file's header: nothing is loaded, and no GPU is asked. fp8: numerics. GpuMemoryOf's
// errors, the settings' and the file's.
absl::StatusOr<ModelFileOnGpus> PlanModelFileOnGpus(const std::string& path, const ModelFileOptions& options,
                                                    const kernels::TensorParallel& split, bool fp8);

// This machine as an accelerator: the memory that is available now, bandwidth and FLOP/s unknown.
Accelerator ThisMachine();

}  // namespace baton::cli

#endif  // BATON_CLI_MODEL_FILE_H_
