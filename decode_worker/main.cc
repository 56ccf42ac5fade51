// The decode worker's process. See README.md for its life.
#include "absl/strings/str_cat.h"
#include "common/config.h"
#include "common/logging.h"
#include "common/rpc/worker_host.h"
#include "decode_worker/service.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/ucx_transport.h"

namespace baton {
namespace {

absl::StatusOr<std::unique_ptr<kvtransfer::TransportClient>> StartTransport(const v1::Config& config,
                                                                            kvtransfer::ReceiverOptions receiver) {
  if (config.kv_transport() == "loopback") {
    return absl::InvalidArgumentError("kv_transport is loopback, which works inside one process only; use auto or ucx");
  }
  kvtransfer::UcxOptions options;
  options.network_trusted = config.kv_network_trusted();
  absl::StatusOr<std::unique_ptr<kvtransfer::UcxClient>> client =
      kvtransfer::UcxClient::Start(std::move(receiver), options);
  if (!client.ok()) return client.status();
  return std::unique_ptr<kvtransfer::TransportClient>(*std::move(client));
}

// Where prefill workers fetch the KV of finished turns; the same addresses as on their side.
absl::StatusOr<std::unique_ptr<kvtransfer::UcxServer>> StartHistoryServer(const v1::Config& config,
                                                                          kvtransfer::Exporter* exporter) {
  kvtransfer::UcxOptions options;
  options.network_trusted = config.kv_network_trusted();
  absl::StatusOr<rpc::HostPort> listen = rpc::ParseHostPort(config.listen());
  if (!listen.ok()) return listen.status();
  if (options.network_trusted && !rpc::IsLoopback(listen->host)) options.bind_address = listen->host;
  return kvtransfer::UcxServer::Start(exporter, options);
}

absl::Status Run(const v1::Config& config, ShutdownSignals* signals) {
  Metrics metrics;
  engine::EngineMetrics engine_metrics(&metrics);
  rpc::WorkerHost host("decode", config, signals, &metrics);
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

  absl::StatusOr<std::unique_ptr<kvtransfer::TransportClient>> transport =
      StartTransport(config, {.key = *key,
                              .layout = (*model)->kv_layout(),
                              .fingerprint = (*model)->fingerprint(),
                              .consumer = host.incarnation(),
                              .require_tags = config.kv_block_tags()});
  if (!transport.ok()) return transport.status();
  kvtransfer::Exporter exporter({.worker_name = host.name(),
                                 .incarnation = host.incarnation(),
                                 .key = *key,
                                 .layout = (*model)->kv_layout(),
                                 .fingerprint = (*model)->fingerprint(),
                                 .reap_interval = absl::Milliseconds(100),
                                 .block_tags = config.kv_block_tags()});
  std::unique_ptr<kvtransfer::UcxServer> history_server;
  if (config.kv_history()) {
    absl::StatusOr<std::unique_ptr<kvtransfer::UcxServer>> server = StartHistoryServer(config, &exporter);
    if (!server.ok()) return server.status();
    history_server = *std::move(server);
  }
  decode_worker::DecodeService service({.model = model->get(),
                                        .transports = {{std::string((*transport)->name()), transport->get()}},
                                        .key = *key,
                                        .engine_metrics = &engine_metrics,
                                        .metrics = &metrics,
                                        .exporter = config.kv_history() ? &exporter : nullptr});

  v1::WorkerInfo info = (*model)->Describe();
  *info.mutable_layout() = kvtransfer::LayoutToProto((*model)->kv_layout());
  // No address: this side only connects. The router learns which transports it can use.
  v1::Endpoint* endpoint = info.add_endpoints();
  endpoint->set_worker_name(host.name());
  endpoint->set_incarnation(host.incarnation());
  endpoint->set_transport(std::string((*transport)->name()));
  const absl::Status served = host.Serve(std::move(info), {{"baton.v1.DecodeWorker", &service}},
                                         {.load = [&service] { return service.load(); },
                                          .drain = [&service] { service.Drain(); },
                                          .idle = [&service] { return service.idle(); }});
  if (history_server != nullptr) history_server->Shutdown();
  exporter.ReleaseAll();
  return served;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::rpc::WorkerMain("decode", argc, argv, baton::Run); }
