// The router process. Its settings: proto/config.proto; what it prints on stdout: common/process_events.h.
#include <cstdio>

#include "common/clock.h"
#include "common/config.h"
#include "common/logging.h"
#include "common/process_events.h"
#include "common/shutdown.h"
#include "router/router.h"

namespace {

int Fail(const absl::Status& status, int code) {
  baton::LogError("cannot start", {{"error", status.message()}});
  baton::EmitEvent("failed", "reason", status.message());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  baton::ReserveStdout();
  baton::ShutdownSignals signals;  // before any other thread
  const absl::StatusOr<baton::LoadedConfig> loaded = baton::LoadConfig(baton::ProcessRole::kRouter, argc, argv);
  if (!loaded.ok()) return Fail(loaded.status(), 2);
  const baton::v1::Config& config = loaded->config;
  if (absl::Status s = baton::InitLogging(config.log_level(), config.log_format(), "router"); !s.ok())
    return Fail(s, 2);
  for (const std::string& warning : loaded->warnings) baton::LogWarn(warning);
  if (config.exit_with_parent()) baton::DrainWhenParentDies();

  baton::Metrics metrics;
  absl::Status drained;
  {
    absl::StatusOr<std::unique_ptr<baton::router::Router>> router =
        baton::router::Router::Start(config, &metrics, baton::Clock::Real());
    if (!router.ok()) return Fail(router.status(), 1);
    baton::LogInfo("ready", {{"listen", (*router)->address()}, {"http", (*router)->http_address()}});
    baton::EmitReady("router", "router", (*router)->address(), (*router)->http_address());
    signals.WaitForDrain();
    baton::EmitEvent("draining");
    drained = (*router)->Drain();
  }
  if (!drained.ok()) baton::LogWarn("drain gave up", {{"error", drained.message()}});
  baton::EmitEvent("stopped");
  return drained.ok() ? 0 : 1;
}
