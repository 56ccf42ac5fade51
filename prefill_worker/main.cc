// The prefill worker's process. See README.md for its life.
#include <cstdio>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/config.h"
#include "common/logging.h"
#include "common/process_events.h"
#include "common/rpc/worker_host.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/ucx_transport.h"
#include "prefill_worker/service.h"

namespace baton {
namespace {

absl::StatusOr<std::unique_ptr<kvtransfer::TransportServer>> StartTransport(const v1::Config& config,
                                                                            kvtransfer::Exporter* exporter) {
  if (config.kv_transport() == "loopback") {
    return absl::InvalidArgumentError("kv_transport is loopback, which works inside one process only; use auto or ucx");
  }
  kvtransfer::UcxOptions options;
  options.network_trusted = config.kv_network_trusted();
  absl::StatusOr<rpc::HostPort> listen = rpc::ParseHostPort(config.listen());
  if (!listen.ok()) return listen.status();
  // KV goes over the interface that gRPC listens on; beyond loopback only where the operator trusts the network.
  if (options.network_trusted && !rpc::IsLoopback(listen->host)) options.bind_address = listen->host;
  absl::StatusOr<std::unique_ptr<kvtransfer::UcxServer>> server = kvtransfer::UcxServer::Start(exporter, options);
  if (!server.ok()) return server.status();
  return std::unique_ptr<kvtransfer::TransportServer>(*std::move(server));
}

absl::Status Run(const v1::Config& config, ShutdownSignals* signals) {
  Metrics metrics;
  engine::EngineMetrics engine_metrics(&metrics);
  rpc::WorkerHost host("prefill", config, signals, &metrics);
  if (absl::Status s = InitLogging(config.log_level(), config.log_format(), host.name()); !s.ok()) return s;
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
  absl::StatusOr<std::unique_ptr<kvtransfer::TransportServer>> transport = StartTransport(config, &exporter);
  if (!transport.ok()) return transport.status();
  std::map<std::string, kvtransfer::TransportClient*> history_transports;
  std::unique_ptr<kvtransfer::UcxClient> history_client;
  if (config.kv_history()) {
    kvtransfer::UcxOptions options;
    options.network_trusted = config.kv_network_trusted();
    absl::StatusOr<std::unique_ptr<kvtransfer::UcxClient>> client =
        kvtransfer::UcxClient::Start({.key = *key,
                                      .layout = (*model)->kv_layout(),
                                      .fingerprint = (*model)->fingerprint(),
                                      .consumer = host.incarnation(),
                                      .require_tags = config.kv_block_tags()},
                                     options);
    if (!client.ok()) return client.status();
    history_client = *std::move(client);
    history_transports["ucx"] = history_client.get();
  }
  prefill_worker::PrefillService service({.model = model->get(),
                                          .exporter = &exporter,
                                          .engine_metrics = &engine_metrics,
                                          .metrics = &metrics,
                                          .lease = absl::Milliseconds(config.kv_lease_ms()),
                                          .transports = history_transports,
                                          .key = *key});

  v1::WorkerInfo info = (*model)->Describe();
  *info.mutable_layout() = kvtransfer::LayoutToProto((*model)->kv_layout());
  *info.add_endpoints() = (*transport)->endpoint();
  const absl::Status served = host.Serve(std::move(info), {{"baton.v1.PrefillWorker", &service}},
                                         {.load = [&service] { return service.load(); },
                                          .prefixes = [&service](uint64_t v) { return service.prefixes(v); },
                                          .drain = [&service] { service.Drain(); },
                                          .idle = [&service] { return service.idle(); }});
  if (history_client != nullptr) history_client->Shutdown();
  (*transport)->Shutdown();
  exporter.ReleaseAll();
  return served;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::rpc::WorkerMain("prefill", argc, argv, baton::Run); }
