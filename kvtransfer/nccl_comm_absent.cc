// For programs built without CUDA.
#include "kvtransfer/nccl_comm.h"

namespace baton::kvtransfer {
namespace {

absl::Status Absent() {
  return absl::FailedPreconditionError(
      "kv_transport is nccl, and this program was built without NCCL; build it with --config=cuda, or use auto, ucx or grpc");
}

}  // namespace

absl::StatusOr<std::string> StartNccl(bool network_trusted) { return Absent(); }
absl::StatusOr<std::string> NewNcclId() { return Absent(); }
absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Begin(const std::string& id, int rank, size_t staging_bytes) {
  return Absent();
}

}  // namespace baton::kvtransfer
