#include "worker/process.h"

#include <memory>
#include <string>

#include "common/logging.h"
#include "common/shutdown.h"

namespace baton::worker {
namespace {

absl::Status Run(absl::string_view first, const Roles& roles, const v1::Config& config, ShutdownSignals* signals) {
  Metrics metrics;
  engine::EngineMetrics engine_metrics(&metrics);
  rpc::WorkerHost host(std::string(first), config, signals, &metrics);
  if (absl::Status s = InitLogging(config.log_level(), config.log_format(), host.name()); !s.ok()) return s;
  if (absl::Status s = host.LoadSecurity(); !s.ok()) return s;
  if (absl::Status s = host.StartHttp(); !s.ok()) return s;

  engine::LoadedModel::Options load;
  load.progress = [&host](absl::string_view phase, double fraction) { host.ReportLoading(phase, fraction); };
  load.on_forward = [&engine_metrics](const engine::ForwardTiming& timing) { engine_metrics.OnForward(timing); };
  const absl::StatusOr<std::unique_ptr<engine::LoadedModel>> model = engine::LoadedModel::Load(config, load);
  if (!model.ok()) return model.status();
  (*model)->LogMemory();
  const absl::StatusOr<std::string> key_file = rpc::ClusterKeyFile(config);
  if (!key_file.ok()) return key_file.status();
  const absl::StatusOr<kvtransfer::ClusterKey> key = kvtransfer::ClusterKey::FromFile(*key_file);
  if (!key.ok()) return key.status();
  const std::shared_ptr<void> collect = engine_metrics.Attach(model->get());
  const Parts parts{config, &host, &metrics, &engine_metrics, model->get(), *key};
  while (true) {
    const absl::StatusOr<rpc::WorkerHost::ServeEnd> end =
        host.role() == "prefill" ? roles.prefill(parts) : roles.decode(parts);
    if (!end.ok() || *end == rpc::WorkerHost::ServeEnd::kStopped) return end.status();
    (*model)->engine()->Resume();
  }
}

}  // namespace

int Main(absl::string_view first, const Roles& roles, int argc, char** argv) {
  return rpc::WorkerMain(first, argc, argv, [&](const v1::Config& config, ShutdownSignals* signals) {
    return Run(first, roles, config, signals);
  });
}

}  // namespace baton::worker
