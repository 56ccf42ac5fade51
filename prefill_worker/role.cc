#include "prefill_worker/role.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "common/tracing/tracer.h"
#include "kvtransfer/kv_transports.h"
#include "kvtransfer/link_service.h"
#include "prefill_worker/service.h"
#include "prefill_worker/vllm_leg.h"

namespace baton::prefill_worker {

absl::StatusOr<rpc::WorkerHost::ServeEnd> ServeRole(const worker::Parts& parts) {
  const v1::Config& config = parts.config;
  rpc::WorkerHost* const host = parts.host;
  engine::LoadedModel* const model = parts.model;
  if (!config.kv_block_tags()) {
    LogInfo("KV blocks carry checksums only: that stops corruption, not forgery; kv_block_tags adds a keyed tag to each");
  }
  kvtransfer::Exporter exporter(parts.ExporterOptions());
  kvtransfer::LinkService link_service(&exporter);
  const absl::StatusOr<std::vector<std::unique_ptr<kvtransfer::TransportServer>>> transports =
      kvtransfer::StartKvServers(config, host->security(), &exporter, &link_service, model->transfer_device());
  if (!transports.ok()) return transports.status();
  // For the KV of finished turns, which decode workers export.
  std::unique_ptr<kvtransfer::FailoverClient> history_client;
  std::map<std::string, kvtransfer::TransportClient*> history_transports;
  if (config.kv_history()) {
    absl::StatusOr<std::unique_ptr<kvtransfer::FailoverClient>> client =
        kvtransfer::StartKvClient(config, host->security(), parts.ReceiverOptions(), rpc::PeerRole::kDecode, {},
                                  model->transfer_device());
    if (!client.ok()) return client.status();
    history_client = *std::move(client);
    for (const char* name : {"ucx", "nccl", "grpc"}) history_transports[name] = history_client.get();
  }
  const absl::StatusOr<std::unique_ptr<tracing::Tracer>> tracer =
      tracing::Tracer::FromConfig(config, {"baton-prefill", host->name()}, parts.metrics);
  if (!tracer.ok()) return tracer.status();
  PrefillService service({.model = model,
                          .exporter = &exporter,
                          .engine_metrics = parts.engine_metrics,
                          .metrics = parts.metrics,
                          .lease = absl::Milliseconds(config.kv_lease_ms()),
                          .transports = history_transports,
                          .key = parts.key,
                          .tracer = tracer->get()});

  vllm::EngineInfo vllm_info = parts.VllmEngineInfo();
  vllm_info.kv_role = "kv_producer";
  vllm_info.generate = [&](vllm::EngineRequest request, absl::Time deadline,
                           const std::optional<tracing::SpanContext>& trace, std::shared_ptr<vllm::GenerateCall> call) {
    RunVllmLeg(&service, model->limits(), std::move(request), deadline, trace, std::move(call));
  };
  vllm_info.load = [&service] { return service.load(); };
  vllm::EngineService vllm_engine(std::move(vllm_info));
  std::vector<rpc::NamedService> services = {{"baton.v1.PrefillWorker", &service}};
  if (config.vllm_engine()) services.push_back({"vllm.grpc.engine.VllmEngine", &vllm_engine});

  v1::WorkerInfo info = parts.Describe();
  for (const auto& transport : *transports) *info.add_endpoints() = transport->endpoint();
  const absl::StatusOr<rpc::WorkerHost::ServeEnd> end =
      host->Serve(std::move(info), std::move(services),
                  {.load = [&service] { return service.load(); },
                   .prefixes = [&service](uint64_t version) { return service.prefixes(version); },
                   .drain = [&service] { service.Drain(); },
                   .idle = [&service] { return service.idle(); },
                   .activity = [model] { return model->engine()->activity(); }});
  if (history_client != nullptr) history_client->Shutdown();
  for (const auto& transport : *transports) transport->Shutdown();
  exporter.ReleaseAll();
  return end;
}

}  // namespace baton::prefill_worker
