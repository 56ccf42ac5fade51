// Transport over gRPC streams: encrypted and authenticated where the processes have certificates, reaches any host.
//
// Each half owns one thread (EventLoop) that holds all state and does the checks; gRPC's threads only post to it. The
// server is a listener of its own with its own memory quota, so that KV cannot starve requests. Blocks go out straight
// from the pool's memory, in frames of 1 MiB, and are copied once on arrival, by the client's own thread: a fetch that
// failed never leaves bytes in flight, so its destination always comes back.
#ifndef BATON_KVTRANSFER_GRPC_TRANSPORT_H_
#define BATON_KVTRANSFER_GRPC_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

struct GrpcKvOptions {
  rpc::Security security;
  // Server: host:port; port 0 takes a free one. Not a wildcard: the address goes on tickets.
  std::string listen = "127.0.0.1:0";
  // Server: further services of the same port, such as OpenLink's.
  grpc::Service* link_service = nullptr;
  // Server: the same for other transports, by name; for workers only, kept alive until the server is gone.
  std::vector<std::pair<std::string, std::shared_ptr<grpc::Service>>> services;
  size_t quota_bytes = 512u << 20;
  size_t max_fetches = 1024;  // at once
  absl::Duration open_timeout = absl::Seconds(5);  // from a stream's begin to its FetchOpen
  // Client: the role that exporting workers have.
  rpc::PeerRole peer = rpc::PeerRole::kPrefill;
  int connect_attempts = 4;  // of one fetch, before anything was heard
  absl::Duration connect_backoff = absl::Milliseconds(50);  // before the second; it doubles
  // Tests: called on the server's thread before each block is sent.
  std::function<void(TransferId id, size_t block_idx)> before_block_for_test;
};

struct GrpcKvServerCounters {
  uint64_t fetches = 0;       // streams that were accepted
  uint64_t fetches_open = 0;
  uint64_t malformed = 0;     // no FetchOpen, or not in time
  uint64_t forged = 0;
  uint64_t refused = 0;       // authentic tickets that the exporter refused
  uint64_t completed = 0;
};

class GrpcKvServer : public TransportServer {
 public:
  // Errors as rpc::Server::Start; INVALID_ARGUMENT for a wildcard address. `advertise`: tickets name it.
  static absl::StatusOr<std::unique_ptr<GrpcKvServer>> Start(Exporter* exporter, GrpcKvOptions options,
                                                             bool advertise = true);
  virtual GrpcKvServerCounters counters() const = 0;
};

// Never fails to start: it connects when first used.
std::unique_ptr<TransportClient> MakeGrpcKvClient(ReceiverOptions receiver, GrpcKvOptions options);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_GRPC_TRANSPORT_H_
