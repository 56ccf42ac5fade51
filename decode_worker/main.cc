// The decode worker's process. See README.md for its life.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config.h"
#include "common/logging.h"
#include "common/rpc/worker_host.h"
#include "common/vllm/engine_service.h"
#include "decode_worker/service.h"
#include "decode_worker/vllm_leg.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/kv_transports.h"
#include "kvtransfer/link_tester.h"
#include "kvtransfer/ticket.h"

namespace baton {
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

absl::Status Run(const v1::Config& config, ShutdownSignals* signals) {
  Metrics metrics;
  engine::EngineMetrics engine_metrics(&metrics);
  rpc::WorkerHost host("decode", config, signals, &metrics);
  if (absl::Status s = InitLogging(config.log_level(), config.log_format(), host.name()); !s.ok()) return s;
  if (absl::Status s = host.LoadSecurity(); !s.ok()) return s;
  if (absl::Status s = host.StartHttp(); !s.ok()) return s;

  engine::LoadedModel::Options load;
  load.progress = [&host](absl::string_view phase, double fraction) { host.ReportLoading(phase, fraction); };
  load.on_forward = [&engine_metrics](const engine::ForwardTiming& timing) { engine_metrics.OnForward(timing); };
  absl::StatusOr<std::unique_ptr<engine::LoadedModel>> model = engine::LoadedModel::Load(config, load);
  if (!model.ok()) return model.status();
  (*model)->LogMemory();
  absl::StatusOr<std::string> key_file = rpc::ClusterKeyFile(config);
  if (!key_file.ok()) return key_file.status();
  absl::StatusOr<kvtransfer::ClusterKey> key = kvtransfer::ClusterKey::FromFile(*key_file);
  if (!key.ok()) return key.status();
  const std::shared_ptr<void> collect = engine_metrics.Attach(model->get());

  kvtransfer::FailoverOptions failover;
  auto* failovers = &metrics.Counter("baton_kv_failovers_total", "Links that broke under a fetch that another one took over");
  failover.on_failover = [failovers](const v1::Endpoint& from, absl::string_view next, const absl::Status& why) {
    failovers->Increment();
    LogWarn("a KV link broke; the fetch goes on over another transport",
            {{"worker", from.worker_name()}, {"transport", from.transport()}, {"next", next}, {"why", why.message()}});
  };
  std::unique_ptr<kvtransfer::LinkTester> links;  // set before the first fetch
  failover.allowed = [&links](const v1::Endpoint& endpoint) { return links->Allowed(endpoint); };
  absl::StatusOr<std::unique_ptr<kvtransfer::FailoverClient>> transport =
      kvtransfer::StartKvClient(config, host.security(),
                                {.key = *key,
                                 .layout = (*model)->kv_layout(),
                                 .fingerprint = (*model)->fingerprint(),
                                 .consumer = host.incarnation(),
                                 .require_tags = config.kv_block_tags()},
                                rpc::PeerRole::kPrefill, std::move(failover));
  if (!transport.ok()) return transport.status();
  links = std::make_unique<kvtransfer::LinkTester>(TesterOptions(config, host.security(), (*model)->kv_layout(), &metrics),
                                                   transport->get());
  // One client for whatever a ticket names first.
  std::map<std::string, kvtransfer::TransportClient*> transports;
  for (const char* name : {"ucx", "nccl", "grpc"}) transports[name] = transport->get();
  kvtransfer::Exporter exporter({.worker_name = host.name(),
                                 .incarnation = host.incarnation(),
                                 .key = *key,
                                 .layout = (*model)->kv_layout(),
                                 .fingerprint = (*model)->fingerprint(),
                                 .reap_interval = absl::Milliseconds(100),
                                 .block_tags = config.kv_block_tags()});
  std::vector<std::unique_ptr<kvtransfer::TransportServer>> history_servers;
  if (config.kv_history()) {
    absl::StatusOr<std::vector<std::unique_ptr<kvtransfer::TransportServer>>> servers =
        kvtransfer::StartKvServers(config, host.security(), &exporter, /*link_service=*/nullptr);
    if (!servers.ok()) return servers.status();
    history_servers = *std::move(servers);
  }
  const absl::StatusOr<std::unique_ptr<tracing::Tracer>> tracer =
      tracing::Tracer::FromConfig(config, {"baton-decode", host.name()}, &metrics);
  if (!tracer.ok()) return tracer.status();
  decode_worker::DecodeService service({.model = model->get(),
                                        .transports = transports,
                                        .key = *key,
                                        .engine_metrics = &engine_metrics,
                                        .metrics = &metrics,
                                        .exporter = config.kv_history() ? &exporter : nullptr,
                                        .tracer = tracer->get()});

  vllm::EngineService vllm_engine(
      {.engine_id = absl::StrCat(host.name(), "-", host.incarnation()),
       .kv_role = "kv_consumer",
       .limits = (*model)->limits(),
       .architecture = (*model)->architecture(),
       .eos_token_ids = (*model)->eos_token_ids(),
       .block_size = static_cast<uint32_t>((*model)->kv_layout().block_size),
       .max_sequences = config.max_sequences(),
       .default_deadline = absl::Milliseconds(config.default_deadline_ms()),
       .generate =
           [&](vllm::EngineRequest request, absl::Time deadline, const std::optional<tracing::SpanContext>& trace,
               std::shared_ptr<vllm::GenerateCall> call) {
             decode_worker::RunVllmLeg(&service, (*model)->limits(), &metrics, std::move(request), deadline, trace,
                                      std::move(call));
           },
       .load = [&service] { return service.load(); },
       .serving = [signals] { return !signals->draining(); }});
  std::vector<rpc::NamedService> services = {{"baton.v1.DecodeWorker", &service}};
  if (config.vllm_engine()) services.push_back({"vllm.grpc.engine.VllmEngine", &vllm_engine});

  v1::WorkerInfo info = (*model)->Describe();
  *info.mutable_layout() = kvtransfer::LayoutToProto((*model)->kv_layout());
  // No address: this side only connects. The router learns which transports it can use.
  for (const auto& [name, client] : transports) {
    if ((*transport)->transport(name) == nullptr) continue;
    v1::Endpoint* endpoint = info.add_endpoints();
    endpoint->set_worker_name(host.name());
    endpoint->set_incarnation(host.incarnation());
    endpoint->set_transport(name);
  }
  const absl::Status served = host.Serve(std::move(info), std::move(services),
                    {.load =
                         [&] {
                           v1::WorkerLoad load = service.load();
                           for (v1::KvLink& link : links->links()) *load.add_links() = std::move(link);
                           return load;
                         },
                     .prefixes = [&service](uint64_t version) { return service.prefixes(version); },
                     .drain = [&service] { service.Drain(); },
                     .idle = [&service] { return service.idle(); },
                     .activity = [&model] { return (*model)->engine()->activity(); },
                     .on_heartbeat =
                         [&links](const v1::HeartbeatResponse& answer) {
                           links->SetPeers({answer.peers().begin(), answer.peers().end()});
                         }});
  links->Stop();
  (*transport)->Shutdown();
  for (const auto& server : history_servers) server->Shutdown();
  exporter.ReleaseAll();
  return served;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::rpc::WorkerMain("decode", argc, argv, baton::Run); }
