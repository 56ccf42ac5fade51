#include "common/rpc/security.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/address.h"
#include "common/rpc/certificate_files.h"

namespace baton::rpc {
namespace {

constexpr std::pair<PeerRole, const char*> kRoleNames[] = {{PeerRole::kRouter, "router"},
                                                           {PeerRole::kPrefill, "prefill"},
                                                           {PeerRole::kDecode, "decode"},
                                                           {PeerRole::kAdmin, "admin"},
                                                           {PeerRole::kClient, "client"}};
constexpr absl::string_view kDomain = ".baton.internal";

std::string HostOf(PeerRole role) { return absl::StrCat(Name(role), kDomain); }

std::optional<PeerRole> RoleOfHost(absl::string_view host) {
  if (!absl::EndsWith(host, kDomain)) return std::nullopt;
  return ParseRole(host.substr(0, host.size() - kDomain.size()));
}

std::string Join(const PeerRoles& roles) {
  return absl::StrJoin(roles, ", ", [](std::string* out, PeerRole role) { absl::StrAppend(out, Name(role)); });
}

bool Contains(const PeerRoles& roles, PeerRole role) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

// Runs for each call before anything of it reaches a service.
class CallGuard final : public grpc::AuthMetadataProcessor {
 public:
  CallGuard(std::vector<CallRule> rules, bool anonymous_ok) : rules_(std::move(rules)), anonymous_ok_(anonymous_ok) {}
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto found = metadata.find(":path");
    if (found == metadata.end()) return {grpc::StatusCode::PERMISSION_DENIED, "the call names no method"};
    const absl::string_view path(found->second.data(), found->second.size());
    const CallRule* rule = nullptr;
    for (const CallRule& r : rules_) {
      if (!absl::StartsWith(path, r.path_prefix)) continue;
      if (rule == nullptr || r.path_prefix.size() > rule->path_prefix.size()) rule = &r;
    }
    // What no rule names is not served either; gRPC would say UNIMPLEMENTED, to members only.
    static const CallRule kNobody{"", {}};
    if (rule == nullptr) rule = &kNobody;
    const std::optional<PeerRole> role = RoleOf(*context);
    if (role.has_value() && Contains(rule->roles, *role)) return grpc::Status::OK;
    if (!role.has_value() && anonymous_ok_ && rule->roles.size() == kEveryRole.size()) return grpc::Status::OK;
    return {grpc::StatusCode::PERMISSION_DENIED,
            absl::StrCat("this call is for certificates of ", rule->roles.empty() ? "nobody" : Join(rule->roles), "; ",
                         role.has_value() ? absl::StrCat("the caller's is of ", Name(*role))
                                          : "the caller showed none that names a role")};
  }

 private:
  const std::vector<CallRule> rules_;
  const bool anonymous_ok_;
};

}  // namespace

absl::string_view Name(PeerRole role) {
  for (const auto& [r, name] : kRoleNames) {
    if (r == role) return name;
  }
  return "unknown";
}

std::optional<PeerRole> ParseRole(absl::string_view name) {
  for (const auto& [role, text] : kRoleNames) {
    if (name == text) return role;
  }
  return std::nullopt;
}

std::optional<PeerRole> RoleOf(const grpc::AuthContext& context) {
  for (const grpc::string_ref& name : context.FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    if (std::optional<PeerRole> role = RoleOfHost(absl::string_view(name.data(), name.size()))) return role;
  }
  return std::nullopt;
}

absl::StatusOr<Security> Security::FromConfig(const v1::Config& config, const PeerRoles& own_roles) {
  Security security;
  security.allow_plaintext_ = config.allow_plaintext();
  if (!config.has_tls_dir() && !config.has_tls_cert() && !config.has_tls_key() && !config.has_tls_ca()) return security;
  auto files = std::make_shared<Files>();
  files->reload_s = config.tls_reload_s();
  if (config.has_tls_dir()) {
    // The first role whose key this user can read: a command takes admin's where it may, else client's.
    PeerRole role = own_roles.back();
    for (const PeerRole r : own_roles) {
      if (::access(absl::StrCat(config.tls_dir(), "/", Name(r), ".key").c_str(), R_OK) != 0) continue;
      role = r;
      break;
    }
    files->cert = absl::StrCat(config.tls_dir(), "/", Name(role), ".crt");
    files->key = absl::StrCat(config.tls_dir(), "/", Name(role), ".key");
    files->ca = absl::StrCat(config.tls_dir(), "/ca.crt");
  }
  if (config.has_tls_cert()) files->cert = config.tls_cert();
  if (config.has_tls_key()) files->key = config.tls_key();
  if (config.has_tls_ca()) files->ca = config.tls_ca();
  if (files->cert.empty() || files->key.empty() || files->ca.empty()) {
    return absl::InvalidArgumentError(
        "of tls_cert, tls_key and tls_ca only some are set; TLS needs all three, or tls_dir with what "
        "deploy/certs/make_certs.sh made");
  }
  absl::StatusOr<CertificateInfo> info = CheckCertificateFiles(files->cert, files->key, files->ca);
  if (!info.ok()) return info.status();
  bool has_role = false;
  for (const std::string& name : info->dns_names) {
    const std::optional<PeerRole> role = RoleOfHost(name);
    has_role = has_role || (role.has_value() && Contains(own_roles, *role));
  }
  if (!has_role) {
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate ", files->cert, " names ", absl::StrJoin(info->dns_names, ", "),
                     "; this process needs one for ", HostOf(own_roles.front()), " (deploy/certs/make_certs.sh)"));
  }
  WarnBeforeItEnds(*info, files->cert, "renew it with deploy/certs/make_certs.sh DIR --renew");
  security.files_ = std::move(files);
  return security;
}

absl::Status Security::CheckAddress(absl::string_view what, absl::string_view address) const {
  if (tls() || allow_plaintext_) return absl::OkStatus();
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok() || IsLoopback(parsed->host)) return absl::OkStatus();  // the caller hears of a bad address by itself
  return absl::FailedPreconditionError(absl::StrCat(
      what, " ", address, " is beyond this host's loopback, and gRPC would be plain text there; set tls_dir (or tls_cert, "
      "tls_key and tls_ca; deploy/certs/make_certs.sh makes them), or allow_plaintext if something else encrypts that "
      "network"));
}

std::shared_ptr<grpc::ServerCredentials> Security::ServerCredentials(std::vector<CallRule> rules,
                                                                     bool anonymous_ok) const {
  if (!tls()) return grpc::InsecureServerCredentials();
  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files_->key, files_->cert, files_->ca,
                                                                                       files_->reload_s);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(anonymous_ok ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<CallGuard>(std::move(rules), anonymous_ok));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Security::ChannelCredentials(PeerRole peer,
                                                                       grpc::ChannelArguments* args) const {
  if (!tls()) return grpc::InsecureChannelCredentials();
  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files_->key, files_->cert, files_->ca,
                                                                                       files_->reload_s);
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  args->SetSslTargetNameOverride(HostOf(peer));
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace baton::rpc
