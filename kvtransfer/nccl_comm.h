// The few calls of NCCL that the transport uses, and the device memory that they work on. Chosen at link time: NCCL itself
// (nccl_comm_cuda.cc), an implementation between processes of one host for tests (nccl_comm_loopback.cc), or none
// (nccl_comm_absent.cc).
//
// A communicator has two ranks. NCCL moves bytes between staging buffers on the devices and never sees other memory: blocks
// go in and out by CopyIn and CopyOut, which have ended when they return. So what NCCL may still be reading or writing
// after a peer has vanished is staging memory alone, and that goes with the communicator.
//
// NCCL gives no promise that the death of a peer is reported: a group may just never complete. Whoever uses this keeps the
// time and calls Abort.
#ifndef BATON_KVTRANSFER_NCCL_COMM_H_
#define BATON_KVTRANSFER_NCCL_COMM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kvtransfer {

inline constexpr size_t kNcclIdBytes = 128;

// What is there: "NCCL 2.28.9", "loopback". FAILED_PRECONDITION: this program has none, or there is no GPU. Once, before
// anything else; network_trusted: NCCL, which authenticates nobody, may use other interfaces than loopback.
absl::StatusOr<std::string> StartNccl(bool network_trusted);

// kNcclIdBytes that both ranks of one new communicator begin with. They are a secret: whoever has them can pose as a rank.
absl::StatusOr<std::string> NewNcclId();

// One thread at a time, but for the destructor's and Abort's, which may run on another thread when no call runs.
class NcclComm {
 public:
  virtual ~NcclComm() = default;  // as Abort()

  // Begins a communicator of two ranks and returns at once; Settled() tells when it is made. `staging_bytes` of device
  // memory come with it. UNAVAILABLE, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Begin(const std::string& id, int rank, size_t staging_bytes);

  // True: it is made, and the latest group is launched; until then nothing but Completed, Settled and Abort may be called.
  // UNAVAILABLE: it is broken, for good.
  virtual absl::StatusOr<bool> Settled() = 0;

  // Between host memory and the staging buffer, which no group under way may use at these bytes.
  virtual absl::Status CopyIn(size_t offset, std::span<const std::byte> from) = 0;
  virtual absl::Status CopyOut(size_t offset, std::span<std::byte> to) = 0;

  // The staging buffer, in the device's memory: for copies on the device, under the same rule.
  virtual std::byte* staging() = 0;

  // One group of NCCL: sends (receives) parts of `sizes` bytes that lie one after the other from `offset`. Groups happen in
  // their order; the other rank receives (sends) groups of the same sizes in the same order. The result names it: 1, 2, ...
  virtual absl::StatusOr<uint64_t> SendGroup(size_t offset, std::span<const size_t> sizes) = 0;
  virtual absl::StatusOr<uint64_t> ReceiveGroup(size_t offset, std::span<const size_t> sizes) = 0;
  // Its bytes have left, or are in the staging buffer. UNAVAILABLE as Settled.
  virtual absl::StatusOr<bool> Completed(uint64_t group) = 0;

  // Ends everything, whatever state it is in; nothing moves after it returned. May take its time.
  virtual void Abort() = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_COMM_H_
