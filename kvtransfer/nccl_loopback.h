// Faults for the NCCL of tests (nccl_comm_loopback.cc), which moves bytes over Unix sockets, between processes of one host or
// threads of one process. Like NCCL's it says nothing of a peer that vanished, unless told to.
#ifndef BATON_KVTRANSFER_NCCL_LOOPBACK_H_
#define BATON_KVTRANSFER_NCCL_LOOPBACK_H_

#include <atomic>

namespace baton::kvtransfer {

struct NcclLoopbackFaults {
  std::atomic<bool> init_hangs{false};      // communicators that begin now are never made, and only Abort ends them
  std::atomic<bool> reports_death{false};   // an asynchronous error when the peer vanishes; else its groups just hang
  std::atomic<int> break_at_group{0};       // > 0: an asynchronous error in place of that group of a communicator
  std::atomic<int> hang_at_group{0};        // > 0: that group, and what comes after it, never completes
  std::atomic<int> corrupt_at_group{0};     // > 0: one bit of it arrives altered
  std::atomic<int> slow_rank_1_ms{0};       // rank 1 sees that much later than rank 0 that a communicator is made
  std::atomic<int> abort_ms{0};             // how long Abort takes
};
NcclLoopbackFaults& LoopbackFaults();

// Communicators of this process: made or being made, and not aborted.
int NumLoopbackComms();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_LOOPBACK_H_
