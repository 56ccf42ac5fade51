// Client channels with the keepalive and retry settings of the project.
#ifndef BATON_COMMON_RPC_CHANNEL_H_
#define BATON_COMMON_RPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/security.h"

namespace baton::rpc {

struct ChannelOptions {
  int max_message_bytes = 8 << 20;
  // Unary calls that end with UNAVAILABLE before the server saw them are tried up to 4 times. Streams are never
  // replayed: what retries a request is the router, which knows what was emitted.
  bool retry_unavailable = true;
  // Two channels of one process to one address share a connection unless this differs.
  bool own_connection = false;
  // For streams of large messages: wide flow-control windows.
  bool bulk = false;
  // Sent with each call as the metadata of that name, when not empty: "Bearer KEY".
  std::string authorization;
  // Whether a plain-text address is acceptable (Security::CheckAddress) is for the caller to ask first.
  Security security;
  PeerRole peer = PeerRole::kRouter;  // under TLS, what the server must prove to be
};

// Never null; connects when first used. `address` is host:port.
std::shared_ptr<grpc::Channel> CreateChannel(const std::string& address, const ChannelOptions& options = {});

// Sets `context`'s deadline; absl::InfiniteFuture() leaves it without one.
void SetDeadline(grpc::ClientContext* context, absl::Time deadline);

// The deadline of a server's call; absl::InfiniteFuture() when the client gave none.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_CHANNEL_H_
