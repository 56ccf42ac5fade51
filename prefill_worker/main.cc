// The prefill worker's process. See README.md for its life.
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config.h"
#include "common/logging.h"
#include "common/process_events.h"
#include "common/rpc/worker_host.h"
#include "common/vllm/engine_service.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/kv_transports.h"
#include "kvtransfer/link_service.h"
#include "kvtransfer/ticket.h"
#include "prefill_worker/service.h"
#include "prefill_worker/vllm_leg.h"

namespace baton {
namespace {

absl::Status Run(const v1::Config& config, ShutdownSignals* signals) {
  Metrics metrics;
  engine::EngineMetrics engine_metrics(&metrics);
  rpc::WorkerHost host("prefill", config, signals, &metrics);
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

  kvtransfer::Exporter::Options exporter_options{.worker_name = host.name(),
                                                 .incarnation = host.incarnation(),
                                                 .key = *key,
                                                 .layout = (*model)->kv_layout(),
                                                 .fingerprint = (*model)->fingerprint(),
                                                 .reap_interval = absl::Milliseconds(100),
                                                 .block_tags = config.kv_block_tags()};
  if (!config.kv_block_tags()) {
    LogInfo("KV blocks carry checksums only: that stops corruption, not forgery; kv_block_tags adds a keyed tag to each");
  }
  kvtransfer::Exporter exporter(exporter_options);
  kvtransfer::LinkService link_service(&exporter);
  absl::StatusOr<std::vector<std::unique_ptr<kvtransfer::TransportServer>>> transports =
      kvtransfer::StartKvServers(config, host.security(), &exporter, &link_service);
  if (!transports.ok()) return transports.status();
  // For the KV of finished turns, which decode workers export.
  std::unique_ptr<kvtransfer::FailoverClient> history_client;
  std::map<std::string, kvtransfer::TransportClient*> history_transports;
  if (config.kv_history()) {
    absl::StatusOr<std::unique_ptr<kvtransfer::FailoverClient>> client =
        kvtransfer::StartKvClient(config, host.security(),
                                  {.key = *key,
                                   .layout = (*model)->kv_layout(),
                                   .fingerprint = (*model)->fingerprint(),
                                   .consumer = host.incarnation(),
                                   .require_tags = config.kv_block_tags()},
                                  rpc::PeerRole::kDecode, {});
    if (!client.ok()) return client.status();
    history_client = *std::move(client);
    for (const char* name : {"ucx", "nccl", "grpc"}) history_transports[name] = history_client.get();
  }
  const absl::StatusOr<std::unique_ptr<tracing::Tracer>> tracer =
      tracing::Tracer::FromConfig(config, {"baton-prefill", host.name()}, &metrics);
  if (!tracer.ok()) return tracer.status();
  prefill_worker::PrefillService service({.model = model->get(),
                                          .exporter = &exporter,
                                          .engine_metrics = &engine_metrics,
                                          .metrics = &metrics,
                                          .lease = absl::Milliseconds(config.kv_lease_ms()),
                                          .transports = history_transports,
                                          .key = *key,
                                          .tracer = tracer->get()});

  vllm::EngineService vllm_engine(
      {.engine_id = absl::StrCat(host.name(), "-", host.incarnation()),
       .kv_role = "kv_producer",
       .limits = (*model)->limits(),
       .architecture = (*model)->architecture(),
       .eos_token_ids = (*model)->eos_token_ids(),
       .block_size = static_cast<uint32_t>((*model)->kv_layout().block_size),
       .max_sequences = config.max_sequences(),
       .default_deadline = absl::Milliseconds(config.default_deadline_ms()),
       .generate =
           [&](vllm::EngineRequest request, absl::Time deadline, const std::optional<tracing::SpanContext>& trace,
               std::shared_ptr<vllm::GenerateCall> call) {
             prefill_worker::RunVllmLeg(&service, (*model)->limits(), std::move(request), deadline, trace, std::move(call));
           },
       .load = [&service] { return service.load(); },
       .serving = [signals] { return !signals->draining(); }});
  std::vector<rpc::NamedService> services = {{"baton.v1.PrefillWorker", &service}};
  if (config.vllm_engine()) services.push_back({"vllm.grpc.engine.VllmEngine", &vllm_engine});

  v1::WorkerInfo info = (*model)->Describe();
  *info.mutable_layout() = kvtransfer::LayoutToProto((*model)->kv_layout());
  for (const auto& transport : *transports) *info.add_endpoints() = transport->endpoint();
  const absl::Status served = host.Serve(std::move(info), std::move(services),
                                         {.load = [&service] { return service.load(); },
                                          .prefixes = [&service](uint64_t v) { return service.prefixes(v); },
                                          .drain = [&service] { service.Drain(); },
                                          .idle = [&service] { return service.idle(); },
                     .activity = [&model] { return (*model)->engine()->activity(); }});
  if (history_client != nullptr) history_client->Shutdown();
  for (const auto& transport : *transports) transport->Shutdown();
  exporter.ReleaseAll();
  return served;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::rpc::WorkerMain("prefill", argc, argv, baton::Run); }
