#include "common/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <chrono>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/logging.h"
#include "common/rpc/grpc_log.h"

namespace baton::rpc {
namespace {

// Both are process-wide in gRPC 1.51 and must be set before the first server is built.
void EnablePluginsOnce(bool reflection) {
  static std::once_flag health_once, reflection_once;
  std::call_once(health_once, [] { grpc::EnableDefaultHealthCheckService(true); });
  if (reflection) std::call_once(reflection_once, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
}

// Debian builds abseil without NDEBUG, so its mutexes, which are gRPC's, note the order in which they are taken, each under one
// spin lock for the whole process. That is for finding deadlocks; threads that share a core may wait for that lock's holder.
void SkipLockOrderChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

void Configure(const ServerOptions& options, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("baton");
  quota.Resize(options.quota_bytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->SetMaxSendMessageSize(options.max_message_bytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // Clients may ping every 10 s without a call; we find dead ones within 30 s.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 9000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
}

std::vector<CallRule> RulesFor(const std::vector<NamedService>& services) {
  std::vector<CallRule> rules = {{"/grpc.health.v1.Health/", kEveryRole}, {"/grpc.reflection.", kEveryRole}};
  for (const NamedService& named : services) rules.push_back({absl::StrCat("/", named.name, "/"), named.callers});
  return rules;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<NamedService>& services) {
  absl::StatusOr<HostPort> target = ParseHostPort(options.listen);
  if (!target.ok()) return target.status();
  if (absl::Status s = ExplainBindFailure(options.listen); !s.ok()) return s;
  if (absl::Status s = options.security.CheckAddress("the gRPC address", options.listen); !s.ok()) return s;
  EnablePluginsOnce(options.reflection);
  TakeGrpcLogs();
  SkipLockOrderChecks();

  std::unique_ptr<Server> server(new Server());
  grpc::ServerBuilder builder;
  Configure(options, &builder);
  server->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      options.security.ServerCredentials(RulesFor(services), options.anonymous_ok));
  for (const NamedService& named : services) {
    if (named.service != nullptr) builder.RegisterService(named.service);
    server->health_names_.push_back(named.name);
  }
  if (options.generic_service != nullptr) builder.RegisterCallbackGenericService(options.generic_service);
  absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Listen(*target);
  if (!acceptor.ok()) {
    const absl::Status reason = ExplainBindFailure(options.listen);
    return reason.ok() ? acceptor.status() : reason;
  }
  server->acceptor_ = *std::move(acceptor);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::UnavailableError(absl::StrCat("cannot serve on ", options.listen));
  server->acceptor_->Start([connections = server->connections_.get()](int listener, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  });
  server->port_ = server->acceptor_->port();
  server->address_ = JoinHostPort(target->host, server->port_);
  if (!IsLoopback(target->host) && !options.security.tls()) {
    LogWarn("listening beyond this host without encryption", {{"address", server->address_}});
  }
  if (auto* health = server->server_->GetHealthCheckService()) health->SetServingStatus("liveness", true);
  server->SetServing(false);
  return server;
}

Server::~Server() {
  if (!shut_down_) Shutdown(absl::ZeroDuration());
}

void Server::SetServing(bool serving) {
  auto* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", serving);
  health->SetServingStatus("readiness", serving);
  for (const std::string& name : health_names_) health->SetServingStatus(name, serving);
}

void Server::Shutdown(absl::Duration grace) {
  if (server_ == nullptr || shut_down_) return;
  shut_down_ = true;
  acceptor_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
  server_->Wait();
}

}  // namespace baton::rpc
