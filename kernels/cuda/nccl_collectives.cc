// NCCL, all ranks in one process and driven by one thread: calls for several ranks go between ncclGroupStart and ncclGroupEnd
// (NCCL user guide, "Group Calls"), or the first would wait for the second for good.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/collectives.h"

namespace baton::kernels::cuda {
namespace {

absl::Status FromNccl(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

class NcclCollectives final : public Collectives {
 public:
  explicit NcclCollectives(std::vector<ncclComm_t> comms) : comms_(std::move(comms)) {}
  ~NcclCollectives() override {
    // Destroying may wait for the other ranks of the process.
    ncclGroupStart();
    for (const ncclComm_t comm : comms_) ncclCommDestroy(comm);
    ncclGroupEnd();
  }

  absl::Status AllGather(std::span<float* const> parts, size_t floats, std::span<const Stream> streams) override {
    // A rank that broke says so only when asked, and the others would wait for it.
    for (const ncclComm_t comm : comms_) {
      ncclResult_t state = ncclSuccess;
      absl::Status status = FromNccl(ncclCommGetAsyncError(comm, &state), "asking for a communicator's state");
      if (status.ok()) status = FromNccl(state, "a communicator broke");
      if (!status.ok()) return status;
    }
    absl::Status status = FromNccl(ncclGroupStart(), "ncclGroupStart");
    for (size_t r = 0; r < comms_.size() && status.ok(); ++r) {
      // In place: NCCL takes a rank's own part where it puts the others'.
      status = FromNccl(ncclAllGather(parts[r] + r * floats, parts[r], floats, ncclFloat, comms_[r],
                                      reinterpret_cast<cudaStream_t>(streams[r])),
                        "ncclAllGather");
    }
    const ncclResult_t ended = ncclGroupEnd();
    return status.ok() ? FromNccl(ended, "ncclGroupEnd") : status;
  }

 private:
  const std::vector<ncclComm_t> comms_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(int num_ranks) {
  std::vector<int> devices(static_cast<size_t>(num_ranks));
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<ncclComm_t> comms(devices.size());
  const ncclResult_t made = ncclCommInitAll(comms.data(), num_ranks, devices.data());
  if (made != ncclSuccess) {
    return absl::UnavailableError(
        absl::StrCat("making a communicator of ", num_ranks, " GPUs: ", ncclGetErrorString(made)));
  }
  return std::make_unique<NcclCollectives>(std::move(comms));
}

}  // namespace baton::kernels::cuda
