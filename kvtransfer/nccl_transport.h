// Transport over NCCL: a communicator for each pair of workers, groups of sends and receives between their GPUs. What is
// said beside the bytes (tickets, which pieces come next, ends, heartbeats) goes over a gRPC stream of the KV port, one for
// each pair (proto/kv_nccl.proto). Stream and communicator live and die together: whatever breaks either, both ends abort
// the communicator, every fetch over it ends with UNAVAILABLE, and the next fetch makes a new pair of them.
//
// Each half owns one thread (EventLoop) that holds all state and polls NCCL while something is under way, and a second one
// that aborts communicators, which may take its time. NCCL reads and writes staging memory only (nccl_comm.h), so a
// claim's blocks and a fetch's destination are never in use by what a vanished peer left behind.
//
// NCCL authenticates nobody and encrypts nothing; who may use it where is as for UCX (docs/TRANSPORT.md).
#ifndef BATON_KVTRANSFER_NCCL_TRANSPORT_H_
#define BATON_KVTRANSFER_NCCL_TRANSPORT_H_

#include <algorithm>
#include <functional>
#include <memory>

#include <grpcpp/impl/service_type.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"
#include "kernels/device_space.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

struct NcclOptions {
  bool network_trusted = false;  // as UcxOptions'
  rpc::Security security;        // client: of the KV port's gRPC
  rpc::PeerRole peer = rpc::PeerRole::kPrefill;  // client: the role that exporting workers have
  size_t max_links = 256;                        // server
  absl::Duration open_timeout = absl::Seconds(5);   // server: from a stream's begin to its first valid ticket
  absl::Duration init_timeout = absl::Seconds(30);  // for a communicator to be made
  // For a group to complete once it is posted at both ends; NCCL itself would wait forever.
  absl::Duration group_timeout = absl::Seconds(10);
  // Where the KV of pools with a device is: blocks go between its memory and the staging buffers by copies on the device, and
  // checksums are made there, but where tickets promise tags. Null: by the host's memory. Outlives the transport.
  kernels::DeviceSpace* device = nullptr;
  // Tests: called on the server's thread before a group is sent.
  std::function<void(TransferId id, uint64_t group)> before_group_for_test;
};

struct NcclServerCounters {
  uint64_t links = 0;       // streams that were accepted
  uint64_t links_open = 0;  // until stream and communicator are gone
  uint64_t comms = 0;       // communicators begun
  uint64_t broken = 0;      // links that ended with transfers on them
  uint64_t malformed = 0;
  uint64_t forged = 0;
  uint64_t refused = 0;
  uint64_t completed = 0;
  uint64_t device_bytes = 0;  // sent from a device's memory without the host's
};

// The service for a GrpcKvServer (GrpcKvOptions.services), which keeps it alive; then the TransportServer over it.
class NcclKvService {
 public:
  // FAILED_PRECONDITION: StartNccl. INTERNAL: the device. The exporter outlives it.
  static absl::StatusOr<std::shared_ptr<NcclKvService>> Create(Exporter* exporter, NcclOptions options);
  virtual ~NcclKvService() = default;
  virtual grpc::Service* service() = 0;
  virtual NcclServerCounters counters() const = 0;
  // Ends every link; nothing of the exporter's is used afterwards. Idempotent.
  virtual void Shutdown() = 0;
};

// Tickets name it from now on. `kv_port`: the endpoint of the gRPC server that serves `service`.
std::unique_ptr<TransportServer> MakeNcclKvServer(Exporter* exporter, std::shared_ptr<NcclKvService> service,
                                                  const v1::Endpoint& kv_port);

// FAILED_PRECONDITION: StartNccl. INTERNAL: the device.
absl::StatusOr<std::unique_ptr<TransportClient>> StartNcclKvClient(ReceiverOptions receiver, NcclOptions options);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_TRANSPORT_H_
