// Transport over UCX active messages: shared memory with CMA between processes of one host, else TCP.
//
// Each half owns one UCX context, one worker and the one thread that touches them; public methods only pass messages to
// it. See README.md for the messages and for what UCX can and cannot be trusted with.
#ifndef BATON_KVTRANSFER_UCX_TRANSPORT_H_
#define BATON_KVTRANSFER_UCX_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

struct UcxOptions {
  // IPv4 address the server listens on (port chosen by the system). Other than loopback only with network_trusted.
  std::string bind_address = "127.0.0.1";
  // The operator declares that only trusted machines reach this network (kv_network_trusted). False: loopback only, at
  // both ends.
  bool network_trusted = false;
  size_t max_connections = 256;
  // A peer that has not shown a valid ticket by then is disconnected.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // How long a transfer that was told to stop may take before its connection is cut.
  absl::Duration quiet_timeout = absl::Seconds(1);
  // Connection attempts of one fetch, and the pause before the second; it doubles.
  int connect_attempts = 4;
  absl::Duration connect_backoff = absl::Milliseconds(20);
  // Benchmarks: UCX transports to choose from instead of all, such as "tcp".
  std::string only_transports;
  // Tests: called on the server's thread when a block's seal is made, before the block is sent.
  std::function<void(TransferId id, size_t block_idx)> before_block_for_test;
};

struct UcxServerCounters {
  uint64_t connections = 0;         // accepted
  uint64_t connections_open = 0;
  uint64_t connections_refused = 0; // over max_connections
  uint64_t connections_lost = 0;    // by error, not by us
  uint64_t handshake_timeouts = 0;
  uint64_t malformed = 0;  // messages: bad header, oversized, not a ticket
  uint64_t forged = 0;     // tickets with a wrong MAC
  uint64_t refused = 0;    // authentic tickets that the exporter refused
  uint64_t completed = 0;
  uint64_t cut = 0;        // connections closed because a stopped transfer did not become quiet
  uint64_t restarts = 0;   // of UCX, stuck after a peer's death; every other connection began again
};

class UcxServer : public TransportServer {
 public:
  // INVALID_ARGUMENT: bind_address. UNAVAILABLE: UCX or the listener cannot start.
  static absl::StatusOr<std::unique_ptr<UcxServer>> Start(Exporter* exporter, UcxOptions options = {});
  virtual UcxServerCounters counters() const = 0;
};

struct UcxClientCounters {
  uint64_t fetches = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t connects = 0;         // attempts
  uint64_t connections_lost = 0;
  uint64_t ignored_messages = 0; // malformed, late or for nobody
  uint64_t restarts = 0;         // of UCX, stuck after a peer's death; every other connection began again
  uint64_t quarantines = 0;
  uint64_t quarantines_open = 0;
};

class UcxClient : public TransportClient {
 public:
  // UNAVAILABLE: UCX cannot start.
  static absl::StatusOr<std::unique_ptr<UcxClient>> Start(ReceiverOptions receiver, UcxOptions options = {});
  virtual UcxClientCounters counters() const = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_TRANSPORT_H_
