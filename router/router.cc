#include "router/router.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/control_socket.h"
#include "common/logging.h"
#include "router/vllm_metrics.h"

namespace baton::router {
namespace {

constexpr int kHttpThreads = 2;  // so that one long prompt, which is tokenized on them, does not hold up all streams
constexpr absl::Duration kScaleTimeout = absl::Seconds(5);
constexpr absl::Duration kDeaf = absl::Milliseconds(500);  // between two ticks: this process did not run
constexpr absl::Duration kHttpGrace = absl::Seconds(2);  // for the last bytes of answers

RoleBalancerOptions BalancerOptions(const v1::Config& config) {
  RoleBalancerOptions options;
  options.sustain = absl::Milliseconds(config.role_dwell_ms());
  // Half of what may pass until token 0: the other half is the prompt's own.
  if (config.ttft_slo_ms() > 0) options.backlog = absl::Milliseconds(config.ttft_slo_ms()) / 2;
  return options;
}

ClusterViewOptions ViewOptions(const v1::Config& config, const ModelText& text) {
  ClusterViewOptions options;
  options.heartbeat = absl::Milliseconds(config.heartbeat_ms());
  options.worker_timeout = absl::Milliseconds(config.worker_timeout_ms());
  options.warm_up = config.warm_up();
  options.prefill_needed = ServingModeFrom(config.mode()) == ServingMode::kDisaggregated;
  options.model_name = text.model_name();
  options.tokenizer_fingerprint = text.tokenizer_fingerprint();
  return options;
}

PlacementOptions PlacementOptionsFrom(const v1::Config& config) {
  PlacementOptions options;
  options.mode = ServingModeFrom(config.mode());
  options.policy.rule = PlacementRuleFrom(config.placement());
  options.policy.max_backlog_tokens = config.prefill_backlog_tokens();
  AdmissionOptions& admission = options.admission;
  admission.max_queued_tokens = config.max_queue_tokens();
  admission.max_wait = absl::Milliseconds(config.queue_timeout_ms());
  for (const Priority priority : {Priority::kHigh, Priority::kStandard}) {
    Promise& promise = admission.promises[static_cast<size_t>(priority)];
    if (config.ttft_slo_ms() > 0) promise.ttft = absl::Milliseconds(config.ttft_slo_ms());
    if (config.itl_slo_ms() > 0) promise.itl = absl::Milliseconds(config.itl_slo_ms());
  }
  admission.requests_per_minute = config.tenant_requests_per_minute();
  admission.tokens_per_minute = static_cast<double>(config.tenant_tokens_per_minute());
  admission.concurrent = static_cast<int>(config.tenant_concurrency());
  return options;
}

}  // namespace

Router::Router(const v1::Config& config, rpc::Security security, std::unique_ptr<ApiKeys> keys,
               std::unique_ptr<ModelText> text, std::unique_ptr<tracing::Tracer> tracer, Metrics* metrics,
               Clock* clock)
    : config_(config),
      security_(std::move(security)),
      text_(std::move(text)),
      tracer_(std::move(tracer)),
      metrics_(metrics),
      clock_(clock),
      started_(clock->Now()),
      table_(config.max_queue()),
      view_(ViewOptions(config, *text_), clock,
            [this](const WorkerId& id, const std::string& why) { OnWorkerGone(id, why); }),
      placement_(&view_, clock, PlacementOptionsFrom(config)),
      channels_(security_),
      router_metrics_(metrics, text_->model_name(), text_->tokenizer_fingerprint()),
      calls_(&channels_),
      context_{&table_, &placement_,     &calls_, &router_metrics_, text_.get(), clock,
               Timers::Real(), &log_, &load_, tracer_.get()},
      keys_(std::move(keys)),
      intake_({absl::Milliseconds(config.default_deadline_ms())}, text_.get(), &view_, &context_, keys_.get()),
      warm_up_(ServingModeFrom(config.mode()), &view_, context_, metrics),
      roles_(BalancerOptions(config)),
      inference_(&intake_),
      kserve_(&intake_, [this] { return !draining_ && view_.Ready(); }),
      cluster_(
          &view_, &router_metrics_, security_,
          [this] {
            UpdateHealth();
            placement_.Changed();
          },
          [this](v1::ClusterStatus* status) { FillStatus(status); },
          [this](const std::string& id) { return placement_.Explain(id); }),
      openai_({config.tool_format()}, &intake_, metrics),
      console_(ConsoleSources()) {}

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const v1::Config& config, Metrics* metrics, Clock* clock) {
  absl::StatusOr<rpc::Security> security = rpc::Security::FromConfig(config, {rpc::PeerRole::kRouter});
  if (!security.ok()) return security.status();
  if (absl::Status s = security->CheckAddress("the gRPC address", config.listen()); !s.ok()) return s;
  auto keys = std::make_unique<ApiKeys>();
  if (config.has_api_keys_file()) {
    if (absl::Status s = keys->Load(config.api_keys_file()); !s.ok()) return s;
  }
  if (membership::UsesRegistry(config)) {
    if (absl::Status s = membership::CheckSettings(config); !s.ok()) return s;
  }
  absl::StatusOr<std::unique_ptr<ModelText>> text = ModelText::Load(config);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::unique_ptr<tracing::Tracer>> tracer = tracing::Tracer::FromConfig(
      config, {"baton-router", config.has_name() ? config.name() : absl::StrCat("router-", getpid())}, metrics);
  if (!tracer.ok()) return tracer.status();
  std::unique_ptr<Router> router(new Router(config, *std::move(security), std::move(keys), *std::move(text),
                                            *std::move(tracer), metrics, clock));
  if (absl::Status status = router->OpenHttp(); !status.ok()) return status;
  if (absl::Status status = router->OpenGrpc(); !status.ok()) return status;
  if (absl::Status status = router->JoinRouters(); !status.ok()) return status;
  router->collect_hook_ = metrics->OnCollect([r = router.get()] { r->CollectGauges(); });
  router->ticker_ = std::thread([r = router.get()] { r->Tick(); });
  return router;
}

absl::Status Router::OpenHttp() {
  rpc::HttpServerOptions options;
  options.listen = config_.http();
  options.threads = kHttpThreads;
  options.max_connections = static_cast<int>(config_.http_max_connections());
  if (config_.has_http_tls_cert() != config_.has_http_tls_key()) {
    return absl::InvalidArgumentError("of http_tls_cert and http_tls_key only one is set; HTTPS needs both");
  }
  if (config_.has_http_tls_cert()) {
    options.tls = rpc::HttpTlsFiles{config_.http_tls_cert(), config_.http_tls_key(), absl::Seconds(config_.tls_reload_s())};
  }
  http_ = std::make_unique<rpc::HttpServer>(options);
  rpc::AddStandardHandlers(
      http_.get(), [this] { return metrics_->Expose(); },
      [this] {
        if (draining_) return rpc::Readiness{false, "draining", 1};
        if (view_.Ready()) return rpc::Readiness{true, "ready", 1};
        return rpc::Readiness{false, "waiting for workers", 0};
      });
  openai_.AddHandlers(http_.get());
  if (config_.console() != "off") console_.AddHandlers(http_.get());
  return http_->Start();
}

absl::Status Router::OpenGrpc() {
  rpc::ServerOptions options;
  options.listen = config_.listen();
  options.security = security_;
  options.anonymous_ok = !config_.tls_require_client_cert();
  // One client connection may carry as many requests as the queue takes, and the health and status calls besides.
  options.max_concurrent_streams = static_cast<int>(std::min<uint32_t>(config_.max_queue(), 65536)) + 100;
  absl::StatusOr<std::unique_ptr<rpc::Server>> server =
      rpc::Server::Start(
      options, {{"baton.v1.Inference", &inference_, rpc::kEveryRole},
                 {"inference.GRPCInferenceService", &kserve_, rpc::kEveryRole},
                 {"baton.v1.Cluster", &cluster_}});
  if (!server.ok()) return server.status();
  {
    MutexLock lock(&health_mu_);
    server_ = *std::move(server);
  }
  UpdateHealth();  // workers may have registered already
  return absl::OkStatus();
}

absl::Status Router::JoinRouters() {
  if (!membership::UsesRegistry(config_)) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<membership::Announcement>> announcement =
      membership::Announce(config_, config_.has_advertise() ? config_.advertise() : address());
  if (!announcement.ok()) return announcement.status();
  announcement_ = *std::move(announcement);
  absl::StatusOr<std::unique_ptr<membership::RouterDirectory>> directory = membership::OpenRouterDirectory(
      config_, [this](const std::vector<std::string>& routers) { placement_.SetRouters(static_cast<int>(routers.size())); });
  if (!directory.ok()) return directory.status();
  directory_ = *std::move(directory);
  return absl::OkStatus();
}

void Router::UpdateHealth() {
  MutexLock lock(&health_mu_);
  const bool serving = !draining_ && view_.Ready();
  if (server_ == nullptr || serving == serving_) return;
  serving_ = serving;
  server_->SetServing(serving);
  LogInfo(serving ? "serving: workers are ready" : "not serving",
          {{"draining", draining_.load()}});
}

void Router::Tick() {
  const absl::Duration period =
      std::clamp(view_.options().worker_timeout / 10, absl::Milliseconds(10), absl::Milliseconds(50));
  absl::Time last = clock_->Now();
  while (true) {
    {
      MutexLock lock(&ticker_mu_);
      if (!stop_) ticker_cv_.WaitWithTimeout(&ticker_mu_, period);
      if (stop_) return;
    }
    const absl::Time now = clock_->Now();
    if (now - last > kDeaf) view_.ForgiveSilence(now - last);
    last = now;
    keys_->ReloadIfChanged();
    view_.ExpireSilent();
    placement_.Tick();
    const QueueState queue = placement_.queue();
    load_.Tick(clock_->Now(), static_cast<uint32_t>(table_.running()),
               static_cast<uint32_t>(std::accumulate(queue.requests.begin(), queue.requests.end(), size_t{0})));
    warm_up_.Tick();
    if (config_.auto_roles()) BalanceRoles(queue.tokens);
    UpdateHealth();
    std::set<WorkerId> known;
    for (const WorkerSnapshot& worker : view_.Snapshot()) known.insert(worker.id);
    channels_.KeepOnly(known);
  }
}

void Router::BalanceRoles(uint64_t queued_tokens) {
  const absl::Time now = clock_->Now();
  if (role_refused_.exchange(false)) roles_.Refused(now);
  const std::optional<RoleChange> change = roles_.Tick(view_.Snapshot(), queued_tokens, now);
  if (!change.has_value()) return;
  const Role to = change->from == Role::kDecode ? Role::kPrefill : Role::kDecode;
  LogInfo("a worker is to change its role", {{"worker", change->worker.name}, {"to", Name(to)}, {"why", change->why}});
  calls_.ChangeRole({change->worker, change->address}, change->from == Role::kDecode,
                    [this, name = change->worker.name, to](const absl::Status& status) {
                      metrics_
                          ->Counter("baton_role_changes_total", "Workers that this router asked to change their role",
                                    {{"to", std::string(Name(to))}, {"result", status.ok() ? "ok" : "refused"}})
                          .Increment();
                      if (status.ok()) return;
                      role_refused_ = true;
                      LogWarn("a worker does not change its role", {{"worker", name}, {"why", status.message()}});
                    });
}

void Router::OnWorkerGone(const WorkerId& id, const std::string& why) {
  LogWarn("worker gone", {{"worker", id.name}, {"incarnation", id.incarnation}, {"why", why}});
  for (const std::shared_ptr<RequestDriver>& driver : table_.Running()) driver->WorkerGone(id, why);
}

void Router::FillStatus(v1::ClusterStatus* status) const {
  status->set_requests_total(intake_.requests_total());
  status->set_requests_failed(router_metrics_.requests_failed());
  status->set_requests_in_flight(static_cast<uint32_t>(table_.running()));
  status->set_model_name(text_->model_name());
  status->set_uptime_s(absl::ToDoubleSeconds(clock_->Now() - started_));
}

console::ConsoleSources Router::ConsoleSources() {
  console::ConsoleSources sources;
  sources.log = &log_;
  sources.load = &load_;
  sources.caller_of = [this](absl::string_view authorization) { return intake_.CallerOf(authorization); };
  sources.status = [this] {
    v1::ClusterStatus status;
    view_.FillStatus(&status);
    FillStatus(&status);
    return status;
  };
  sources.explain = [this](const std::string& id) { return placement_.Explain(id); };
  if (config_.console() == "admin") {
    sources.drain = [this](const std::string& worker, std::function<void(absl::Status)> done) {
      DrainWorker(worker, std::move(done));
    };
    sources.change_role = [this](const std::string& worker, const std::string& role,
                                 std::function<void(absl::Status)> done) {
      ChangeRole(worker, role, std::move(done));
    };
    sources.scale = [this](int prefill, int decode) { return Scale(prefill, decode); };
  }
  return sources;
}

absl::StatusOr<WorkerSnapshot> Router::FindWorker(const std::string& name) const {
  for (WorkerSnapshot& worker : view_.Snapshot()) {
    if (worker.id.name == name && worker.state != WorkerState::kLost) return std::move(worker);
  }
  return absl::NotFoundError(absl::StrCat("no worker named ", name.substr(0, 128)));
}

void Router::DrainWorker(const std::string& name, std::function<void(absl::Status)> done) {
  const absl::StatusOr<WorkerSnapshot> worker = FindWorker(name);
  if (!worker.ok()) return done(worker.status());
  LogInfo("a worker is drained by the console", {{"worker", name}});
  calls_.Drain({worker->id, worker->address}, worker->role == Role::kDecode, std::move(done));
}

void Router::ChangeRole(const std::string& name, const std::string& role, std::function<void(absl::Status)> done) {
  const absl::StatusOr<WorkerSnapshot> worker = FindWorker(name);
  if (!worker.ok()) return done(worker.status());
  if (Name(worker->role) == role) {
    return done(absl::FailedPreconditionError(absl::StrCat(name, " is a ", role, " worker already")));
  }
  LogInfo("a worker's role is changed by the console", {{"worker", name}, {"to", role}});
  calls_.ChangeRole({worker->id, worker->address}, worker->role == Role::kDecode, std::move(done));
}

absl::Status Router::Scale(int prefill, int decode) const {
  const absl::StatusOr<std::string> path = ControlSocketPath(address());
  if (!path.ok()) return path.status();
  nlohmann::json sizes = nlohmann::json::object();
  if (prefill > 0) sizes["prefill"] = prefill;
  if (decode > 0) sizes["decode"] = decode;
  const absl::StatusOr<nlohmann::json> answer = CallControl(*path, {{"scale", std::move(sizes)}}, kScaleTimeout);
  if (!answer.ok()) return answer.status();
  const auto error = answer->find("error");
  if (error == answer->end()) return absl::OkStatus();
  return absl::FailedPreconditionError(error->is_string() ? error->get<std::string>() : "`baton up` refused");
}

void Router::CollectGauges() {
  std::map<std::pair<Role, WorkerState>, int> count;
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const WorkerState state : {WorkerState::kWarming, WorkerState::kReady, WorkerState::kDraining, WorkerState::kLost}) {
      count[{role, state}] = 0;
    }
  }
  const std::vector<WorkerSnapshot> workers = view_.Snapshot();
  for (const WorkerSnapshot& worker : workers) ++count[{worker.role, worker.state}];
  const QueueState queue = placement_.queue();
  uint64_t queued = 0;
  for (size_t i = 0; i < kNumPriorities; ++i) {
    metrics_
        ->Gauge("baton_router_queued_requests", "Requests that wait in the router for room or for a worker",
                {{"class", std::string(Name(static_cast<Priority>(i)))}})
        .Set(static_cast<double>(queue.requests[i]));
    queued += queue.requests[i];
  }
  metrics_->Gauge("baton_router_queued_tokens", "Their prompt tokens").Set(static_cast<double>(queue.tokens));
  VllmMetrics(metrics_, {{"model_name", text_->model_name()}, {"engine", "0"}}).Collect(workers, queued);
  for (const auto& [key, number] : count) {
    metrics_
        ->Gauge("baton_workers", "Workers the router knows",
                {{"role", std::string(Name(key.first))}, {"state", std::string(Name(key.second))}})
        .Set(number);
  }
}

absl::Status Router::Drain() {
  draining_ = true;
  announcement_.reset();  // nobody new comes; those that know this router stay until it is gone
  UpdateHealth();
  intake_.Drain();
  http_->Drain();
  LogInfo("draining", {{"in_flight", table_.running()}});
  const absl::Duration timeout = absl::Milliseconds(config_.drain_timeout_ms());
  if (table_.WaitUntilNoneRuns(timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("requests were still running when drain_timeout_ms had passed; they are cut off");
}

Router::~Router() {
  draining_ = true;
  announcement_.reset();
  directory_.reset();
  intake_.Drain();
  collect_hook_.reset();
  {
    MutexLock lock(&ticker_mu_);
    stop_ = true;
    ticker_cv_.SignalAll();
  }
  if (ticker_.joinable()) ticker_.join();
  for (const std::shared_ptr<RequestDriver>& driver : table_.Running()) driver->Stop();
  if (http_ != nullptr) http_->Stop(kHttpGrace);
  console_.WaitUntilIdle();
  if (server_ != nullptr) server_->Shutdown(absl::Seconds(2));
  table_.WaitUntilGone();
  calls_.WaitUntilIdle();
}

}  // namespace baton::router
