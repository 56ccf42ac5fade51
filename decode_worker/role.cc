#include "decode_worker/role.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "common/tracing/tracer.h"
#include "decode_worker/service.h"
#include "decode_worker/vllm_leg.h"
#include "kvtransfer/kv_transports.h"
#include "kvtransfer/link_tester.h"

namespace baton::decode_worker {
namespace {

kvtransfer::LinkOptions TesterOptions(const v1::Config& config, const rpc::Security& security,
                                      const kernels::KvLayout& layout, Metrics* metrics) {
  kvtransfer::LinkOptions options;
  options.security = security;
  options.layout = layout;
  options.floor_bytes_per_second = 1e6 * config.kv_link_floor_mb_s();
  options.refuse_below_floor = config.kv_link_below_floor() == "refuse";
  options.on_result = [metrics](const v1::KvLink& link) {
    const bool good = link.state() == "ok";
    metrics->Counter("baton_kv_link_tests_total", "Tests of KV links, by result", {{"result", link.state()}}).Increment();
    metrics
        ->Gauge("baton_kv_link_bytes_per_second", "What a KV link reached when the pair met",
                {{"worker", link.worker()}, {"transport", link.transport()}})
        .Set(good || link.state() != "failed" ? link.gigabytes_per_second() * 1e9 : 0);
    Log(good ? LogLevel::kInfo : LogLevel::kWarn, good ? "KV link measured" : "KV link is not as it should be",
        {{"worker", link.worker()},
         {"state", link.state()},
         {"transport", link.transport()},
         {"via", link.detail()},
         {"gb_per_s", link.gigabytes_per_second()},
         {"error", link.error()}});
  };
  return options;
}


kvtransfer::FailoverOptions Failover(Metrics* metrics, const std::unique_ptr<kvtransfer::LinkTester>& links) {
  kvtransfer::FailoverOptions failover;
  auto* failovers =
      &metrics->Counter("baton_kv_failovers_total", "Links that broke under a fetch that another one took over");
  failover.on_failover = [failovers](const v1::Endpoint& from, absl::string_view next, const absl::Status& why) {
    failovers->Increment();
    LogWarn("a KV link broke; the fetch goes on over another transport",
            {{"worker", from.worker_name()}, {"transport", from.transport()}, {"next", next}, {"why", why.message()}});
  };
  failover.allowed = [&links](const v1::Endpoint& endpoint) { return links->Allowed(endpoint); };
  return failover;
}

}  // namespace

absl::StatusOr<rpc::WorkerHost::ServeEnd> ServeRole(const worker::Parts& parts) {
  const v1::Config& config = parts.config;
  rpc::WorkerHost* const host = parts.host;
  engine::LoadedModel* const model = parts.model;
  std::unique_ptr<kvtransfer::LinkTester> links;  // set before the first fetch
  const absl::StatusOr<std::unique_ptr<kvtransfer::FailoverClient>> transport =
      kvtransfer::StartKvClient(config, host->security(), parts.ReceiverOptions(), rpc::PeerRole::kPrefill,
                                Failover(parts.metrics, links), model->transfer_device());
  if (!transport.ok()) return transport.status();
  links = std::make_unique<kvtransfer::LinkTester>(
      TesterOptions(config, host->security(), model->kv_layout(), parts.metrics), transport->get());
  // One client for whatever a ticket names first.
  std::map<std::string, kvtransfer::TransportClient*> transports;
  for (const char* name : {"ucx", "nccl", "grpc"}) transports[name] = transport->get();
  kvtransfer::Exporter exporter(parts.ExporterOptions());
  std::vector<std::unique_ptr<kvtransfer::TransportServer>> history_servers;
  if (config.kv_history()) {
    absl::StatusOr<std::vector<std::unique_ptr<kvtransfer::TransportServer>>> servers =
        kvtransfer::StartKvServers(config, host->security(), &exporter, /*link_service=*/nullptr,
                                   model->transfer_device());
    if (!servers.ok()) return servers.status();
    history_servers = *std::move(servers);
  }
  const absl::StatusOr<std::unique_ptr<tracing::Tracer>> tracer =
      tracing::Tracer::FromConfig(config, {"baton-decode", host->name()}, parts.metrics);
  if (!tracer.ok()) return tracer.status();
  DecodeService service({.model = model,
                         .transports = transports,
                         .key = parts.key,
                         .engine_metrics = parts.engine_metrics,
                         .metrics = parts.metrics,
                         .exporter = config.kv_history() ? &exporter : nullptr,
                         .tracer = tracer->get()});

  vllm::EngineInfo vllm_info = parts.VllmEngineInfo();
  vllm_info.kv_role = "kv_consumer";
  vllm_info.generate = [&](vllm::EngineRequest request, absl::Time deadline,
                           const std::optional<tracing::SpanContext>& trace, std::shared_ptr<vllm::GenerateCall> call) {
    RunVllmLeg(&service, model->limits(), parts.metrics, std::move(request), deadline, trace, std::move(call));
  };
  vllm_info.load = [&service] { return service.load(); };
  vllm::EngineService vllm_engine(std::move(vllm_info));
  std::vector<rpc::NamedService> services = {{"baton.v1.DecodeWorker", &service}};
  if (config.vllm_engine()) services.push_back({"vllm.grpc.engine.VllmEngine", &vllm_engine});

  v1::WorkerInfo info = parts.Describe();
  // No address: this side only connects. The router learns which transports it can use.
  for (const auto& [name, client] : transports) {
    if ((*transport)->transport(name) == nullptr) continue;
    v1::Endpoint* endpoint = info.add_endpoints();
    endpoint->set_worker_name(host->name());
    endpoint->set_incarnation(host->incarnation());
    endpoint->set_transport(name);
  }
  const absl::StatusOr<rpc::WorkerHost::ServeEnd> end =
      host->Serve(std::move(info), std::move(services),
                  {.load =
                       [&] {
                         v1::WorkerLoad load = service.load();
                         for (v1::KvLink& link : links->links()) *load.add_links() = std::move(link);
                         return load;
                       },
                   .prefixes = [&service](uint64_t version) { return service.prefixes(version); },
                   .drain = [&service] { service.Drain(); },
                   .idle = [&service] { return service.idle(); },
                   .activity = [model] { return model->engine()->activity(); },
                   .on_heartbeat =
                       [&links](const v1::HeartbeatResponse& answer) {
                         links->SetPeers({answer.peers().begin(), answer.peers().end()});
                       }});
  links->Stop();
  (*transport)->Shutdown();
  for (const auto& server : history_servers) server->Shutdown();
  exporter.ReleaseAll();
  return end;
}

}  // namespace baton::decode_worker
