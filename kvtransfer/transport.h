// The seam between the hand-over and what carries it.
//
// The receiver pulls, owns its memory and decides where bytes land: from a transfer id and a block index, never from an
// address on the wire. A fetch may begin before the KV is complete: the sender answers each block when it is sealed, and
// ends the transfer when its exporter has closed the export. A fetch ends exactly once, by its callback.
//
// What a transport carries:
//   receiver to sender   v1::FetchOpen (once); stop (once at most); heartbeat
//   sender to receiver   each block with its v1::BlockSeal; heartbeat; v1::TransferEnd (once, last, bounded by
//                        kMaxEndBytes)
// What it leaves to others: the sender asks a Claim (exporter.h) what to send, the receiver tells a Reception (receiver.h)
// what arrived, and those make and check seals and ends. Liveness is the transport's: both sides send something at least
// every HeartbeatInterval(ticket) while a transfer runs and nothing else goes that way; the server calls Claim::Renew for
// whatever it hears, the client gives up with UNAVAILABLE after SilenceLimit(ticket) of silence.
//
// Errors of a fetch: OK only after every block's length, generation and checksum (and tag) were verified, and the sender
// said after the last byte that all are still valid. INVALID_ARGUMENT a malformed ticket or too small a destination;
// PERMISSION_DENIED a wrong MAC or tag; FAILED_PRECONDITION another layout, model or a peer out of this transport's
// reach; ABORTED the exporter no longer holds it (unknown, fetched, expired, restarted, given up); DATA_LOSS a checksum;
// UNAVAILABLE the peer is gone; DEADLINE_EXCEEDED; CANCELLED. After UNAVAILABLE the same ticket may be presented again,
// with a higher attempt, by this or another transport; after any other error the KV must be recomputed.
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

// Bounds on messages beside blocks. An open is a ticket and three small fields.
inline constexpr size_t kMaxOpenBytes = kMaxTicketBytes + 1024;
inline constexpr size_t kMaxEndPayloadBytes = 64 << 10;
inline constexpr size_t kMaxEndBytes = kMaxEndPayloadBytes + 2048;

// Serves one Exporter, which must outlive it. Thread-safe.
class TransportServer {
 public:
  virtual ~TransportServer() = default;  // as Shutdown()
  // What tickets carry. Starting a server adds it to its exporter (Exporter::AddEndpoint).
  virtual v1::Endpoint endpoint() const = 0;
  // Ends every transfer and waits until nothing reads the exporter's bytes. Idempotent.
  virtual void Shutdown() = 0;
};

struct FetchRequest {
  v1::Ticket ticket;
  uint32_t first_block = 0;  // blocks before it are held already; at most all
  uint32_t attempt = 1;      // of this ticket by this receiver
  // Block first_block + i of the ticket goes to block i. May hold more than that needs; may be empty when all is held.
  kvcache::BlockLease destination;
  absl::Time deadline;  // real time; the request's
};

struct FetchStats {
  uint64_t bytes = 0;
  uint32_t blocks = 0;
  absl::Duration duration;  // from Fetch() to the end
  absl::Duration posting;   // the sender's time for checksums, tags and handing blocks to its transport
  absl::Duration waiting;   // the sender had sent all that was sealed, and more was to come
  std::string transport;    // "loopback", "ucx", "grpc"
  std::string detail;       // what the transport used, such as "sysv/cma"

  absl::Duration moving() const { return duration > waiting ? duration - waiting : absl::ZeroDuration(); }
  double gigabytes_per_second() const {
    const double s = absl::ToDoubleSeconds(moving());
    return s > 0 ? static_cast<double>(bytes) / s / 1e9 : 0;
  }
};

struct FetchResult {
  FetchStats stats;
  bool finished = false;  // the request ended on the exporter's side; not all blocks came, and none is needed
  std::string payload;    // as given to Exporter::Close
};

using FetchId = uint64_t;

// `destination` comes back with every result, except when bytes might still arrive: then it is empty, the blocks are in
// the pool's quarantine, and the transport ends that quarantine itself. Runs once, on the transport's thread
// (after Shutdown() began: on the caller's, inside Fetch()); it must not block, and may call Fetch and Cancel.
using FetchCallback = absl::AnyInvocable<void(absl::StatusOr<FetchResult> result, kvcache::BlockLease destination)>;

// What a receiver compares tickets with.
struct ReceiverOptions {
  ClusterKey key;
  kernels::KvLayout layout;
  v1::ModelFingerprint fingerprint;
  std::string consumer;       // incarnation of this worker; empty in tests with one attempt each
  bool unchecked_for_bench = false;  // checksums are not compared; measures what they cost
  bool require_tags = false;  // refuse tickets whose blocks carry no keyed tags
};

// Thread-safe.
class TransportClient {
 public:
  virtual ~TransportClient() = default;  // as Shutdown()
  // "loopback", "ucx": the Endpoint.transport it can reach.
  virtual absl::string_view name() const = 0;
  // Never blocks; refusals come by the callback too.
  virtual FetchId Fetch(FetchRequest request, FetchCallback done) = 0;
  // The callback comes soon, with CANCELLED unless the fetch had already ended. Unknown ids are ignored.
  virtual void Cancel(FetchId id) = 0;
  // Cancels everything, waits until no byte can arrive and no quarantine of ours is left. Idempotent; not from a callback.
  virtual void Shutdown() = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSPORT_H_
