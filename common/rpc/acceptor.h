// Listens for the connections of a gRPC server and hands them to it. gRPC 1.51's own listener is gone for good once accept()
// has failed, as it does for a moment when the process has no descriptors left; this one goes on.
#ifndef BATON_COMMON_RPC_ACCEPTOR_H_
#define BATON_COMMON_RPC_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"

namespace baton::rpc {

// True when `fd`, which was just opened, is one of the last that the process may have (RLIMIT_NOFILE): they are for what it
// opens itself. Descriptors are given out lowest first.
bool IsOfTheLastDescriptors(int fd);

// Thread contract: one owner. Connections come on a thread of its own.
class Acceptor {
 public:
  // Binds every address of the host, all with one port; "0.0.0.0" and "::" are those of both families. UNAVAILABLE: what
  // ExplainBindFailure did not find.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const HostPort& target);
  ~Acceptor() { Stop(); }

  int port() const { return port_; }
  // `on_connection` owns the descriptor, which does not block. Connections that would take one of the last descriptors are closed.
  void Start(std::function<void(int listener, int fd)> on_connection);
  // Closes the listening sockets; no callback runs behind this.
  void Stop();

 private:
  Acceptor() = default;
  void Run();
  // Until it would block; false: there is nothing to accept with just now.
  bool AcceptAll(int listener);

  std::vector<int> listeners_;
  int port_ = 0;
  int wake_ = -1;  // an eventfd: stop
  std::function<void(int listener, int fd)> on_connection_;
  absl::Time told_ = absl::InfinitePast();  // that connections are closed
  std::thread thread_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_ACCEPTOR_H_
