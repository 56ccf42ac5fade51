#include "common/rpc/worker_host.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config.h"
#include "common/ids.h"
#include "common/logging.h"
#include "common/process_events.h"
#include "common/status.h"

namespace baton::rpc {
namespace {

absl::string_view OtherRole(absl::string_view role) { return role == "prefill" ? "decode" : "prefill"; }

}  // namespace

// baton.v1.Worker.
class WorkerHost::Service : public v1::Worker::CallbackService {
 public:
  Service(v1::WorkerInfo info, WorkerHooks hooks, WorkerHost* host)
      : info_(std::move(info)), hooks_(std::move(hooks)), host_(host) {}

  grpc::ServerUnaryReactor* GetWorkerStatus(grpc::CallbackServerContext* context, const v1::GetWorkerStatusRequest*,
                                            v1::WorkerStatus* response) override {
    response->set_name(info_.name());
    response->set_incarnation(info_.incarnation());
    response->set_role(info_.role());
    response->set_draining(host_->draining());
    *response->mutable_load() = hooks_.load();
    *response->mutable_fingerprint() = info_.fingerprint();
    *response->mutable_layout() = info_.layout();
    response->set_backend(info_.backend());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                  v1::DrainResponse*) override {
    hooks_.drain();  // admission stops before the answer; the rest happens on the main thread
    host_->signals_->RequestDrain();
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* ChangeRole(grpc::CallbackServerContext* context, const v1::ChangeRoleRequest* request,
                                       v1::ChangeRoleResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(host_->ChangeRole(*request, info_.role())));
    return reactor;
  }

 private:
  const v1::WorkerInfo info_;
  const WorkerHooks hooks_;
  WorkerHost* const host_;
};

WorkerHost::WorkerHost(std::string role, const v1::Config& config, ShutdownSignals* signals, Metrics* metrics)
    : role_(std::move(role)),
      config_(config),
      name_(config.has_name() ? config.name() : absl::StrCat(role_, "-", getpid())),
      incarnation_(NewIncarnation()),
      signals_(signals),
      metrics_(metrics) {
  signals_->OnDrain([leave = leave_] {
    {
      MutexLock lock(&leave->mu);
      leave->asked = true;
      leave->next_role.clear();
      leave->cv.SignalAll();
      if (leave->served) return;
    }
    EmitEvent("stopped");
    _exit(0);
  });
}

WorkerHost::~WorkerHost() = default;

std::string WorkerHost::address() const {
  MutexLock lock(&mu_);
  return address_;
}

bool WorkerHost::draining() const {
  MutexLock lock(&leave_->mu);
  return leave_->asked;
}

absl::StatusOr<Security> WorkerHost::SecurityFor(absl::string_view role) const {
  return Security::FromConfig(config_, {role == "prefill" ? PeerRole::kPrefill : PeerRole::kDecode});
}

absl::Status WorkerHost::LoadSecurity() {
  absl::StatusOr<Security> security = SecurityFor(role_);
  if (!security.ok()) return security.status();
  security_ = *std::move(security);
  if (absl::Status s = security_.CheckAddress("the gRPC address", config_.listen()); !s.ok()) return s;
  if (absl::Status s = membership::CheckSettings(config_); !s.ok()) return s;
  if (!config_.has_router() || membership::UsesRegistry(config_)) return absl::OkStatus();
  absl::StatusOr<std::vector<std::string>> routers = membership::ParseAddresses("router", config_.router());
  if (!routers.ok()) return routers.status();
  for (const std::string& router : *routers) {
    if (absl::Status s = security_.CheckAddress("the router's address", router); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status WorkerHost::StartHttp() {
  HttpServerOptions options;
  options.listen = config_.http();
  http_ = std::make_unique<HttpServer>(options);
  AddStandardHandlers(
      http_.get(), [this] { return metrics_->Expose(); },
      [this] {
        if (draining()) return Readiness{false, "draining", 1};
        if (serving_) return Readiness{true, "ready", 1};
        return Readiness{false, progress_ < 1 ? "loading" : "starting", progress_};
      });
  return http_->Start();
}

void WorkerHost::ReportLoading(absl::string_view phase, double fraction) {
  progress_ = fraction;
  EmitLoading(phase, fraction);
}

void WorkerHost::OnRegistration(const std::string& router, const absl::Status& status, int others) {
  if (status.ok()) {
    LogInfo("registered", {{"router", router}});
    EmitEvent("registered", "router", router);
  } else if (status.code() == absl::StatusCode::kFailedPrecondition) {
    LogError("a router refuses this worker", {{"router", router}, {"reason", status.message()}});
    EmitEvent("refused", "reason", status.message());
    // One that serves something else does not end a worker that others use.
    if (others > 0) return;
    {
      MutexLock lock(&mu_);
      refused_ = status;
    }
    signals_->RequestDrain();
  } else {
    LogWarn("the router cannot be reached; trying again",
            {{"router", router}, {"code", RuleFor(status.code()).name}, {"error", status.message()}});
  }
}

absl::Status WorkerHost::StartRegistrations(v1::WorkerInfo info) {
  membership::RegistrationsOptions options;
  options.heartbeat.worker = std::move(info);
  options.heartbeat.period = absl::Milliseconds(config_.heartbeat_ms());
  options.heartbeat.security = security_;
  options.heartbeat.load = hooks_.load;
  options.heartbeat.prefixes = hooks_.prefixes;
  options.heartbeat.on_answer = hooks_.on_heartbeat;
  options.on_change = [this](const std::string& router, const absl::Status& status, int others) {
    OnRegistration(router, status, others);
  };
  absl::StatusOr<std::unique_ptr<membership::Registrations>> registrations =
      membership::Registrations::Start(config_, std::move(options));
  if (!registrations.ok()) return registrations.status();
  registrations_ = *std::move(registrations);
  return absl::OkStatus();
}

std::unique_ptr<StallWatch> WorkerHost::WatchForStalls() const {
  if (config_.engine_stall_ms() == 0 || !hooks_.activity) return nullptr;
  return std::make_unique<StallWatch>(
      absl::Milliseconds(config_.engine_stall_ms()), hooks_.activity, [](absl::Duration stalled) {
        // Nothing can be cleaned up behind a thread that holds who knows what. Connections that break tell the router more
        // than any answer would.
        EndProcessWithin(2);
        const std::string reason =
            absl::StrCat("the engine has been busy with one step for ", absl::ToInt64Milliseconds(stalled),
                         " ms, longer than engine_stall_ms or a thousand times its longest step; the process ends, so that "
                         "its requests go elsewhere. If steps may take that long here, set engine_stall_ms to 0, or "
                         "max_batch_tokens lower");
        LogError(reason);
        EmitEvent("failed", "reason", reason);
        _exit(1);
      });
}

absl::StatusOr<WorkerHost::ServeEnd> WorkerHost::Serve(v1::WorkerInfo info, std::vector<NamedService> services,
                                                       WorkerHooks hooks) {
  hooks_ = std::move(hooks);
  info.set_name(name_);
  info.set_incarnation(incarnation_);
  info.set_role(role_);
  info.set_pid(getpid());
  info.set_changes_role(SecurityFor(OtherRole(role_)).ok());
  if (http_ != nullptr) info.set_metrics_address(http_->address());

  service_ = std::make_unique<Service>(info, hooks_, this);
  services.push_back({"baton.v1.Worker", service_.get()});
  ServerOptions options;
  options.listen = config_.listen();
  options.quota_bytes = kWorkerQuotaBytes;
  options.security = security_;
  options.max_concurrent_streams = 4096;  // one router connection carries all requests
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, services);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  info.set_address(server_->address());
  {
    MutexLock lock(&mu_);
    address_ = server_->address();
  }
  std::unique_ptr<StallWatch> watch = WatchForStalls();
  server_->SetServing(true);
  {
    MutexLock lock(&leave_->mu);
    leave_->served = true;
    leave_->since = absl::Now();
  }
  serving_ = true;
  LogInfo("ready", {{"role", role_}, {"name", name_}, {"listen", info.address()}, {"http", info.metrics_address()}});
  EmitReady(role_, name_, info.address(), info.metrics_address());

  if (config_.has_router() || membership::UsesRegistry(config_)) {
    if (absl::Status s = StartRegistrations(std::move(info)); !s.ok()) return s;
  }
  bool next_role = false;
  {
    MutexLock lock(&leave_->mu);
    while (!leave_->asked) leave_->cv.Wait(&leave_->mu);
    next_role = !leave_->next_role.empty();
  }
  const absl::Status drained = Drain(/*keep_http=*/next_role);
  watch.reset();
  server_.reset();
  service_.reset();
  const absl::StatusOr<ServeEnd> end = TakeNextRole(drained);
  // Told to stop while it changed: whoever started it must know that this end was asked for.
  if (next_role && (!end.ok() || *end == ServeEnd::kStopped) && signals_->draining()) EmitEvent("draining");
  hooks_ = {};
  MutexLock lock(&mu_);
  if (!refused_.ok()) return refused_;
  return end;
}

absl::Status WorkerHost::ChangeRole(const v1::ChangeRoleRequest& request, absl::string_view current) {
  const std::string& role = request.role();
  if (role != "prefill" && role != "decode") {
    return absl::InvalidArgumentError(absl::StrCat("role is \"", absl::string_view(role).substr(0, 32),
                                                   "\"; expected prefill or decode"));
  }
  if (role == current) return absl::OkStatus();
  if (const absl::StatusOr<Security> security = SecurityFor(role); !security.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("this worker cannot be a ", role, " worker: ",
                                                      security.status().message()));
  }
  {
    MutexLock lock(&leave_->mu);
    if (leave_->asked) {
      if (leave_->next_role == role) return absl::OkStatus();
      return absl::FailedPreconditionError("this worker is draining");
    }
    const absl::Duration dwell = absl::Milliseconds(config_.role_dwell_ms());
    if (const absl::Duration had = absl::Now() - leave_->since; had < dwell && !request.force()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this worker has been a ", current, " worker for ", absl::ToInt64Milliseconds(had),
                       " ms, and keeps a role for ", absl::ToInt64Milliseconds(dwell),
                       " (role_dwell_ms), so that pools do not chase each other; wait, or force it"));
    }
    leave_->next_role = role;
    leave_->asked = true;
    // Before the signal: the owner takes the hooks away once it has been woken.
    hooks_.drain();
    leave_->cv.SignalAll();
  }
  LogInfo("changing role", {{"from", current}, {"to", role}});
  EmitEvent("changing_role", "role", role);
  return absl::OkStatus();
}

absl::StatusOr<WorkerHost::ServeEnd> WorkerHost::TakeNextRole(const absl::Status& drained) {
  std::string next;
  {
    MutexLock lock(&leave_->mu);
    next = leave_->next_role;
  }
  if (next.empty()) {
    if (!drained.ok()) return drained;
    return ServeEnd::kStopped;
  }
  // What was cut off ends with its calls; the engine lets go of it within a step.
  const absl::Time until = absl::Now() + absl::Seconds(5);
  while (!hooks_.idle() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
  if (!hooks_.idle()) return drained.ok() ? absl::InternalError("the worker did not come to rest") : drained;
  if (!drained.ok()) LogWarn(drained.message());
  absl::StatusOr<Security> security = SecurityFor(next);
  if (!security.ok()) return security.status();
  security_ = *std::move(security);
  role_ = next;
  incarnation_ = NewIncarnation();
  MutexLock lock(&leave_->mu);
  if (leave_->next_role.empty()) return ServeEnd::kStopped;  // a signal came meanwhile
  leave_->next_role.clear();
  leave_->asked = false;
  return ServeEnd::kNextRole;
}

absl::Status WorkerHost::Drain(bool keep_http) {
  // Health first: load balancers and the router stop to send before anything is refused.
  server_->SetServing(false);
  serving_ = false;
  if (!keep_http) EmitEvent("draining");
  LogInfo("draining", {{"timeout_ms", config_.drain_timeout_ms()}});
  if (registrations_ != nullptr) registrations_->SetDraining();
  hooks_.drain();
  const absl::Time until = absl::Now() + absl::Milliseconds(config_.drain_timeout_ms());
  while (!hooks_.idle() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
  const bool idle = hooks_.idle();
  if (registrations_ != nullptr) registrations_->Deregister();
  // Idle means that every answer was produced; the grace lets the last bytes of them leave.
  server_->Shutdown(idle ? absl::Seconds(2) : absl::ZeroDuration());
  registrations_.reset();
  if (http_ != nullptr && !keep_http) http_->Stop();
  if (idle) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("requests or tickets were still open after ", config_.drain_timeout_ms(), " ms and were cut off"));
}

absl::StatusOr<std::string> ClusterKeyFile(const v1::Config& config) {
  if (config.has_cluster_key_file()) return config.cluster_key_file();
  return absl::InvalidArgumentError(
      "cluster_key_file is not set; all workers of a cluster share a secret of 32 bytes or more that signs tickets. "
      "Make "
      "one with `(umask 077; head -c 32 /dev/urandom > cluster.key)` and pass --cluster-key-file=cluster.key");
}

int WorkerMain(absl::string_view role, int argc, char** argv,
               absl::FunctionRef<absl::Status(const v1::Config& config, ShutdownSignals* signals)> run) {
  for (int i = 1; i < argc; ++i) {
    if (absl::string_view(argv[i]) == "--help") {
      printf("%s worker of Baton. Settings (also as environment variables and in a YAML file):\n\n%s",
             std::string(role).c_str(), ConfigHelp().c_str());
      return 0;
    }
  }
  ReserveStdout();
  const auto fail = [&](const absl::Status& status, int exit_code) {
    fprintf(stderr, "%s_worker: %s\n", std::string(role).c_str(), std::string(status.message()).c_str());
    EmitEvent("failed", "reason", status.message());
    return exit_code;
  };
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(ProcessRole::kWorker, argc, argv);
  if (!loaded.ok()) return fail(loaded.status(), 2);
  ShutdownSignals signals;
  if (loaded->config.exit_with_parent()) DrainWhenParentDies();
  for (const std::string& warning : loaded->warnings) LogWarn(warning);
  const absl::Status status = run(loaded->config, &signals);
  if (!status.ok()) return fail(status, 1);
  LogInfo("stopped");
  EmitEvent("stopped");
  return 0;
}

}  // namespace baton::rpc
