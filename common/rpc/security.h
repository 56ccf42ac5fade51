// Who speaks over gRPC, and how it is known: mutual TLS with one certificate a role, or plain text on loopback.
//
// A certificate says what its holder is by a DNS name in its subject alternative names, <role>.baton.internal
// (deploy/certs/make_certs.sh makes them). Clients of Baton ask for that name whatever address they dial, so a worker
// cannot pose as a router, and servers let each role call only what it has business with. Files that change are read
// again while the process runs.
//
// Thread contract: Security is a value with const methods, safe to share.
#ifndef BATON_COMMON_RPC_SECURITY_H_
#define BATON_COMMON_RPC_SECURITY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"

namespace baton::rpc {

enum class PeerRole { kRouter, kPrefill, kDecode, kAdmin, kClient };
absl::string_view Name(PeerRole role);
std::optional<PeerRole> ParseRole(absl::string_view name);

using PeerRoles = std::vector<PeerRole>;
// What may call workers and the router's membership service.
inline const PeerRoles kInternalRoles = {PeerRole::kRouter, PeerRole::kPrefill, PeerRole::kDecode, PeerRole::kAdmin};
inline const PeerRoles kEveryRole = {PeerRole::kRouter, PeerRole::kPrefill, PeerRole::kDecode, PeerRole::kAdmin,
                                     PeerRole::kClient};

// "/baton.v1.Worker/" may be called by `roles`. Of several prefixes that fit a method the longest counts; a method that
// none fits may be called by nobody.
struct CallRule {
  std::string path_prefix;
  PeerRoles roles;
};

class Security {
 public:
  // Plain text, loopback only.
  Security() = default;

  // By the settings tls_* and allow_plaintext; the certificate must carry one of `own_roles` (the first that it carries is
  // this process's). INVALID_ARGUMENT: some but not all of certificate, key and authority are set. NOT_FOUND: a file.
  // FAILED_PRECONDITION: a file that is not PEM, a key that does not belong to the certificate, a certificate that the
  // authority did not sign, that has expired, or that is another role's. Each message says what to do.
  static absl::StatusOr<Security> FromConfig(const v1::Config& config, const PeerRoles& own_roles);

  bool tls() const { return files_ != nullptr; }

  // FAILED_PRECONDITION when traffic with `address` (host:port; `what` says whose) would leave this host as plain text and
  // allow_plaintext does not say so.
  absl::Status CheckAddress(absl::string_view what, absl::string_view address) const;

  // `rules` are enforced under TLS only: plain text knows no callers. `anonymous_ok`: clients without a certificate may
  // connect, and call what every role may call.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(std::vector<CallRule> rules, bool anonymous_ok) const;
  // For a channel to a server of `peer`'s role; sets what `args` needs.
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(PeerRole peer, grpc::ChannelArguments* args) const;

 private:
  struct Files {
    std::string cert, key, ca;
    unsigned int reload_s = 0;
  };
  std::shared_ptr<const Files> files_;
  bool allow_plaintext_ = false;
};

// The role that the certificate of a call's peer names; nullopt without a certificate, without TLS, or when it names none.
std::optional<PeerRole> RoleOf(const grpc::AuthContext& context);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_SECURITY_H_
