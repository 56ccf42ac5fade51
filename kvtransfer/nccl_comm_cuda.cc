// NCCL itself, with --config=cuda. Communicators do not block: NCCL's own threads make them, and this looks.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/nccl_comm.h"

namespace baton::kvtransfer {
namespace {

static_assert(sizeof(ncclUniqueId) == kNcclIdBytes);

absl::Status FromCuda(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

absl::Status FromNccl(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

class CudaNcclComm final : public NcclComm {
 public:
  ~CudaNcclComm() override { Abort(); }

  absl::Status Begin(const std::string& id, int rank, size_t staging_bytes) {
    peer_ = 1 - rank;
    if (absl::Status s = FromCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream for NCCL"); !s.ok()) {
      return s;
    }
    // A stream of its own: a copy never waits for a peer.
    if (absl::Status s = FromCuda(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "a stream for copies");
        !s.ok()) {
      return s;
    }
    void* staging = nullptr;
    if (absl::Status s = FromCuda(cudaMalloc(&staging, staging_bytes), "memory for staging KV on the GPU"); !s.ok()) {
      return s;
    }
    staging_ = static_cast<std::byte*>(staging);
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return FromNccl(ncclCommInitRankConfig(&comm_, 2, unique, rank, &config), "beginning a communicator");
  }

  absl::StatusOr<bool> Settled() override {
    if (comm_ == nullptr) return absl::UnavailableError("the communicator is aborted");
    ncclResult_t state = ncclSuccess;
    if (absl::Status s = FromNccl(ncclCommGetAsyncError(comm_, &state), "asking for a communicator's state"); !s.ok()) {
      return s;
    }
    if (absl::Status s = FromNccl(state, "the communicator broke"); !s.ok()) return s;
    if (state == ncclInProgress) return false;
    // A group has its place in the stream only now; what is recorded earlier could come before it.
    if (launching_ != 0) {
      if (absl::Status s = Record(std::exchange(launching_, 0)); !s.ok()) return s;
    }
    return true;
  }

  absl::Status CopyIn(size_t offset, std::span<const std::byte> from) override {
    return Copy(staging_ + offset, from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  absl::Status CopyOut(size_t offset, std::span<std::byte> to) override {
    return Copy(to.data(), staging_ + offset, to.size(), cudaMemcpyDeviceToHost);
  }

  std::byte* staging() override { return staging_; }

  absl::StatusOr<uint64_t> SendGroup(size_t offset, std::span<const size_t> sizes) override {
    return Group(offset, sizes, [this](std::byte* at, size_t size) {
      return ncclSend(at, size, ncclUint8, peer_, comm_, stream_);
    });
  }
  absl::StatusOr<uint64_t> ReceiveGroup(size_t offset, std::span<const size_t> sizes) override {
    return Group(offset, sizes, [this](std::byte* at, size_t size) {
      return ncclRecv(at, size, ncclUint8, peer_, comm_, stream_);
    });
  }

  absl::StatusOr<bool> Completed(uint64_t group) override {
    absl::StatusOr<bool> settled = Settled();
    if (!settled.ok() || (!*settled && group == launching_)) return settled;
    const auto it = events_.find(group);
    if (it == events_.end()) return true;
    const cudaError_t state = cudaEventQuery(it->second);
    if (state == cudaErrorNotReady) return false;
    if (absl::Status s = FromCuda(state, "waiting for NCCL"); !s.ok()) return s;
    cudaEventDestroy(it->second);
    events_.erase(it);
    return true;
  }

  // The staging memory goes only after NCCL has let go of it.
  void Abort() override {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
    for (const auto& [group, event] : events_) cudaEventDestroy(event);
    events_.clear();
    if (stream_ != nullptr) {
      cudaStreamSynchronize(stream_);
      cudaStreamDestroy(std::exchange(stream_, nullptr));
    }
    if (copies_ != nullptr) cudaStreamDestroy(std::exchange(copies_, nullptr));
    if (staging_ != nullptr) cudaFree(std::exchange(staging_, nullptr));
  }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (comm_ == nullptr) return absl::UnavailableError("the communicator is aborted");
    absl::Status s = FromCuda(cudaMemcpyAsync(to, from, bytes, kind, copies_), "copying KV to or from the GPU");
    return s.ok() ? FromCuda(cudaStreamSynchronize(copies_), "copying KV to or from the GPU") : s;
  }

  template <typename Part>
  absl::StatusOr<uint64_t> Group(size_t offset, std::span<const size_t> sizes, Part part) {
    if (comm_ == nullptr) return absl::UnavailableError("the communicator is aborted");
    absl::Status s = FromNccl(ncclGroupStart(), "ncclGroupStart");
    std::byte* at = staging_ + offset;
    for (size_t i = 0; i < sizes.size() && s.ok(); at += sizes[i++]) s = FromNccl(part(at, sizes[i]), "a part of a group");
    const ncclResult_t ended = ncclGroupEnd();
    if (s.ok()) s = FromNccl(ended, "ncclGroupEnd");
    if (!s.ok()) return s;
    const uint64_t group = ++last_group_;
    if (ended == ncclInProgress) {
      launching_ = group;
    } else if (s = Record(group); !s.ok()) {
      return s;
    }
    return group;
  }

  absl::Status Record(uint64_t group) {
    cudaEvent_t event = nullptr;
    absl::Status s = FromCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    if (!s.ok()) return s;
    events_[group] = event;
    return FromCuda(cudaEventRecord(event, stream_), "recording an event");
  }

  int peer_ = 0;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  std::byte* staging_ = nullptr;
  uint64_t last_group_ = 0;
  uint64_t launching_ = 0;  // the group that NCCL is still putting into the stream; 0: none
  std::map<uint64_t, cudaEvent_t> events_;  // of groups not known to be complete
};

}  // namespace

absl::StatusOr<std::string> StartNccl(bool network_trusted) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv_transport is nccl, and there is no GPU (", found != cudaSuccess ? cudaGetErrorString(found) : "none",
                     "); use auto, ucx or grpc"));
  }
  if (!network_trusted) {
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
  }
  int version = 0;
  if (absl::Status s = FromNccl(ncclGetVersion(&version), "ncclGetVersion"); !s.ok()) return s;
  return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id;
  if (absl::Status s = FromNccl(ncclGetUniqueId(&id), "ncclGetUniqueId"); !s.ok()) return s;
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Begin(const std::string& id, int rank, size_t staging_bytes) {
  if (id.size() != kNcclIdBytes) return absl::InvalidArgumentError("an id of NCCL has another size");
  auto comm = std::make_unique<CudaNcclComm>();
  if (absl::Status s = comm->Begin(id, rank, staging_bytes); !s.ok()) return s;
  return std::unique_ptr<NcclComm>(std::move(comm));
}

}  // namespace baton::kvtransfer
