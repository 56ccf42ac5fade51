// The seam between the hand-over and what carries it.
//
// The receiver pulls, owns its memory and decides where bytes land: from a transfer id and a block index, never from an
// address on the wire. A fetch ends exactly once, by its callback.
//
// Errors of a fetch: OK only after every block's length, generation and checksum were verified. INVALID_ARGUMENT a
// malformed ticket or too small a destination; PERMISSION_DENIED a wrong MAC; FAILED_PRECONDITION another layout, model
// or a peer out of this transport's reach; ABORTED the exporter no longer holds it (unknown, fetched, expired, restarted);
// DATA_LOSS a checksum; UNAVAILABLE the peer is gone; DEADLINE_EXCEEDED; CANCELLED. After any error the KV must be
// recomputed: the ticket may have been used up.
#ifndef BATON_KVTRANSFER_TRANSPORT_H_
#define BATON_KVTRANSFER_TRANSPORT_H_

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/kv_view.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/ticket.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// Serves one Exporter, which must outlive it. Thread-safe.
class TransportServer {
 public:
  virtual ~TransportServer() = default;  // as Shutdown()
  // What tickets carry.
  virtual v1::Endpoint endpoint() const = 0;
  // Ends every transfer and waits until nothing reads the exporter's bytes. Idempotent.
  virtual void Shutdown() = 0;
};

struct FetchStats {
  uint64_t bytes = 0;
  uint32_t blocks = 0;
  absl::Duration duration;  // from Fetch() to the last block verified
  std::string transport;    // "loopback", "ucx"
  std::string detail;       // what the transport used, such as "sysv/cma"

  double gigabytes_per_second() const {
    const double s = absl::ToDoubleSeconds(duration);
    return s > 0 ? static_cast<double>(bytes) / s / 1e9 : 0;
  }
};

using FetchId = uint64_t;

// `destination` comes back with every result, except when bytes might still arrive: then it is empty, the blocks are in
// the pool's quarantine, and the transport ends that quarantine itself. Runs once, on the transport's thread
// (after Shutdown() began: on the caller's, inside Fetch()); it must not block, and may call Fetch and Cancel.
using FetchCallback = absl::AnyInvocable<void(absl::StatusOr<FetchStats> result, kvcache::BlockLease destination)>;

// What a receiver compares tickets with.
struct ReceiverOptions {
  ClusterKey key;
  kernels::KvLayout layout;
  v1::ModelFingerprint fingerprint;
};

// Thread-safe.
class TransportClient {
 public:
  virtual ~TransportClient() = default;  // as Shutdown()
  // "loopback", "ucx": the Endpoint.transport it can reach.
  virtual absl::string_view name() const = 0;
  // Block i of the ticket goes to block i of `destination`, which may hold more blocks than the ticket names. Deadlines
  // are in real time. Never blocks; refusals come by the callback too.
  virtual FetchId Fetch(v1::Ticket ticket, kvcache::BlockLease destination, absl::Time deadline,
                        FetchCallback done) = 0;
  // The callback comes soon, with CANCELLED unless the fetch had already ended. Unknown ids are ignored.
  virtual void Cancel(FetchId id) = 0;
  // Cancels everything, waits until no byte can arrive and no quarantine of ours is left. Idempotent; not from a callback.
  virtual void Shutdown() = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSPORT_H_
