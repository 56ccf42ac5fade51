// A gRPC server with the settings that every listener of Baton needs: a memory quota (without one, a client that resets
// streams quickly takes gigabytes), message limits, keepalive that tolerates idle clients' pings, health, reflection.
#ifndef BATON_COMMON_RPC_SERVER_H_
#define BATON_COMMON_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/acceptor.h"
#include "common/rpc/address.h"
#include "common/rpc/security.h"

namespace baton::rpc {

inline constexpr size_t kPublicQuotaBytes = 64u << 20;
inline constexpr size_t kWorkerQuotaBytes = 512u << 20;

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0 takes a free one
  size_t quota_bytes = kPublicQuotaBytes;
  int max_message_bytes = 8 << 20;
  int max_concurrent_streams = 100;  // of one connection
  bool reflection = true;
  Security security;
  grpc::CallbackGenericService* generic_service = nullptr;  // of methods that no service has; not owned
  bool anonymous_ok = false;  // clients without a certificate may call what every role may call
};

struct NamedService {
  std::string name;  // "baton.v1.Inference", for health
  grpc::Service* service = nullptr;  // null: its methods are the generic service's
  PeerRoles callers = kInternalRoles;  // under TLS
};

// Thread contract: thread-safe. The services are not owned and outlive the server.
class Server {
 public:
  // Starts to listen; health says NOT_SERVING (and "liveness" SERVING) until SetServing(true).
  // INVALID_ARGUMENT: not host:port. FAILED_PRECONDITION: plain text beyond loopback. ALREADY_EXISTS: the port is in use. PERMISSION_DENIED, UNAVAILABLE: it cannot be
  // bound otherwise. Each message names the address and what to do.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<NamedService>& services);
  // Shuts down at once if that was not done.
  ~Server();

  // host:port with the port really bound.
  const std::string& address() const { return address_; }
  int port() const { return port_; }

  // Health of "", "readiness" and each service. First thing of a drain: SetServing(false).
  void SetServing(bool serving);
  // Stops to accept, waits for running calls until `grace` has passed, cancels the rest, returns when all are done.
  void Shutdown(absl::Duration grace);

 private:
  Server() = default;
  std::vector<std::string> health_names_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<Acceptor> acceptor_;  // hands them to it
  std::string address_;
  int port_ = 0;
  bool shut_down_ = false;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_SERVER_H_
