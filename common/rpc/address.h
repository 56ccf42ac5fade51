// Network addresses as settings spell them.
#ifndef BATON_COMMON_RPC_ADDRESS_H_
#define BATON_COMMON_RPC_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::rpc {

// "host:port" taken apart; port 0 to 65535. IPv6 hosts are in brackets.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);
std::string JoinHostPort(absl::string_view host, int port);
// True for 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(absl::string_view host);

// Why `address` cannot be bound, found by trying: OK when it can.
absl::Status ExplainBindFailure(absl::string_view address);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_ADDRESS_H_
