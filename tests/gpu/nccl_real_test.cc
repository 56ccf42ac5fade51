// The transport's calls of NCCL, linked with the real library (--config=cuda). Two ranks need two GPUs, so what runs
// anywhere is this: without a GPU every call says so, and none crashes, blocks or leaks; with one, NCCL starts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kvtransfer/nccl_comm.h"

namespace baton::kvtransfer {
namespace {

bool HasGpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

TEST(NcclRealTest, StartsOrSaysThatThereIsNoGpu) {
  const absl::StatusOr<std::string> started = StartNccl(/*network_trusted=*/false);
  if (HasGpu()) {
    ASSERT_TRUE(started.ok()) << started.status();
    EXPECT_EQ(started->substr(0, 7), "NCCL 2.");
  } else {
    EXPECT_EQ(started.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(started.status().message().find("no GPU"), std::string::npos) << started.status();
  }
}

TEST(NcclRealTest, ACommunicatorWhosePeerNeverComesIsAborted) {
  EXPECT_EQ(NcclComm::Begin("short", 0, 1 << 20).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<std::string> id = NewNcclId();
  if (!HasGpu()) {
    EXPECT_FALSE(id.ok() && NcclComm::Begin(*id, 0, 1 << 20).ok());
    return;
  }
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(id->size(), kNcclIdBytes);
  absl::StatusOr<std::unique_ptr<NcclComm>> comm = NcclComm::Begin(*id, 0, 1 << 20);
  ASSERT_TRUE(comm.ok()) << comm.status();
  const absl::StatusOr<bool> settled = (*comm)->Settled();
  EXPECT_FALSE(settled.ok() && *settled) << "made without its peer";
  (*comm)->Abort();
  EXPECT_FALSE((*comm)->Settled().ok());
}

}  // namespace
}  // namespace baton::kvtransfer
