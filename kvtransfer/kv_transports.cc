#include "kvtransfer/kv_transports.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/rpc/address.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/nccl_transport.h"
#include "kvtransfer/ucx_memory.h"
#include "kvtransfer/ucx_transport.h"

namespace baton::kvtransfer {
namespace {

absl::Status CheckKind(const v1::Config& config) {
  if (config.kv_transport() != "loopback") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "kv_transport is loopback, which works inside one process only; use auto, ucx, grpc or nccl");
}

bool UsesUcx(const v1::Config& config) { return config.kv_transport() == "auto" || config.kv_transport() == "ucx"; }
bool UsesGrpc(const v1::Config& config) { return config.kv_transport() != "ucx"; }
bool UsesNccl(const v1::Config& config) { return config.kv_transport() == "nccl"; }

// Once for a process, where KV is on a GPU: that UCX is given the host's copy, and whether it could do without.
void LogUcxMemory(const v1::Config& config) {
  if (config.isa() != "cuda" || !UsesUcx(config)) return;
  [[maybe_unused]] static const bool logged = [] {
    const absl::StatusOr<UcxMemory> memory = QueryUcxMemory();
    LogInfo("KV goes over UCX by pinned memory of the host",
            {{"ucx", memory.ok() ? memory->version : memory.status().ToString()},
             {"ucx_has_gpu_memory", memory.ok() && memory->cuda ? "yes, unused" : "no"}});
    return true;
  }();
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<TransportServer>>> StartKvServers(const v1::Config& config,
                                                                            const rpc::Security& security,
                                                                            Exporter* exporter,
                                                                            grpc::Service* link_service,
                                                                            kernels::DeviceSpace* device) {
  if (absl::Status s = CheckKind(config); !s.ok()) return s;
  absl::StatusOr<rpc::HostPort> listen = rpc::ParseHostPort(config.listen());
  if (!listen.ok()) return listen.status();
  std::vector<std::unique_ptr<TransportServer>> servers;
  if (UsesUcx(config)) {
    UcxOptions options;
    options.network_trusted = config.kv_network_trusted();
    // KV goes over the interface that gRPC listens on; beyond loopback only where the operator trusts the network.
    if (options.network_trusted && !rpc::IsLoopback(listen->host)) options.bind_address = listen->host;
    absl::StatusOr<std::unique_ptr<UcxServer>> server = UcxServer::Start(exporter, options);
    if (!server.ok()) return server.status();
    servers.push_back(*std::move(server));
    LogUcxMemory(config);  // when UCX logs where we want it
  }
  GrpcKvOptions options;
  options.security = security;
  options.listen = config.has_kv_listen() ? config.kv_listen() : rpc::JoinHostPort(listen->host, 0);
  options.link_service = link_service;
  std::shared_ptr<NcclKvService> nccl;
  if (UsesNccl(config)) {
    absl::StatusOr<std::shared_ptr<NcclKvService>> service =
        NcclKvService::Create(exporter, {.network_trusted = config.kv_network_trusted(), .device = device});
    if (!service.ok()) return service.status();
    nccl = *std::move(service);
    options.services.push_back({"baton.v1.KvNccl", {nccl, nccl->service()}});
  }
  // Tickets name nccl first, and the port it needs is known only then.
  absl::StatusOr<std::unique_ptr<GrpcKvServer>> server =
      GrpcKvServer::Start(exporter, options, UsesGrpc(config) && nccl == nullptr);
  if (!server.ok()) return server.status();
  if (nccl != nullptr) {
    const v1::Endpoint kv_port = (*server)->endpoint();
    servers.push_back(MakeNcclKvServer(exporter, std::move(nccl), kv_port));
    exporter->AddEndpoint(kv_port);
  }
  servers.push_back(*std::move(server));
  return servers;
}

absl::StatusOr<std::unique_ptr<FailoverClient>> StartKvClient(const v1::Config& config, const rpc::Security& security,
                                                              ReceiverOptions receiver, rpc::PeerRole exporters,
                                                              FailoverOptions options,
                                                              kernels::DeviceSpace* device) {
  if (absl::Status s = CheckKind(config); !s.ok()) return s;
  std::vector<std::unique_ptr<TransportClient>> clients;
  if (UsesUcx(config)) {
    UcxOptions ucx;
    ucx.network_trusted = config.kv_network_trusted();
    absl::StatusOr<std::unique_ptr<UcxClient>> client = UcxClient::Start(receiver, ucx);
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
    LogUcxMemory(config);
  }
  if (UsesNccl(config)) {
    absl::StatusOr<std::unique_ptr<TransportClient>> client = StartNcclKvClient(
        receiver, {.network_trusted = config.kv_network_trusted(), .security = security, .peer = exporters, .device = device});
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  options.allowed = [trusted = config.kv_network_trusted(),
                     next = std::move(options.allowed)](const v1::Endpoint& endpoint) -> absl::Status {
    if (endpoint.transport() != "grpc" && !trusted && endpoint.locality().empty()) {
      return absl::FailedPreconditionError("beyond loopback, and kv_network_trusted is not set");
    }
    return next != nullptr ? next(endpoint) : absl::OkStatus();
  };
  if (UsesGrpc(config)) {
    GrpcKvOptions grpc;
    grpc.security = security;
    grpc.peer = exporters;
    clients.push_back(MakeGrpcKvClient(std::move(receiver), grpc));
  }
  return std::make_unique<FailoverClient>(std::move(clients), std::move(options));
}

}  // namespace baton::kvtransfer
