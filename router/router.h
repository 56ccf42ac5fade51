// The router as a whole: cluster view, requests, services, health, metrics, the HTTP door.
#ifndef BATON_ROUTER_ROUTER_H_
#define BATON_ROUTER_ROUTER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/membership/router_directory.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "common/rpc/server.h"
#include "proto/config.pb.h"
#include "router/cluster_service.h"
#include "router/console/console.h"
#include "router/http/openai_door.h"
#include "router/inference_service.h"
#include "router/intake.h"
#include "router/kserve/kserve_service.h"
#include "router/load_history.h"
#include "router/model_text.h"
#include "router/request_log.h"
#include "router/role_balancer.h"
#include "router/warm_up.h"
#include "router/worker_calls.h"
#include "router/worker_channels.h"

namespace baton::router {

// Thread contract: Drain once, from any thread; the rest is thread-safe.
class Router {
 public:
  // Opens both ports and serves. `metrics` and `clock` are not owned and outlive the router. Errors as ModelText::Load,
  // rpc::Security::FromConfig, rpc::Server::Start and rpc::HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const v1::Config& config, Metrics* metrics, Clock* clock);
  // Ends what still runs with UNAVAILABLE and returns when every call is over.
  ~Router();

  const std::string& address() const { return server_->address(); }
  const std::string& http_address() const { return http_->address(); }

  // Health says NOT_SERVING, new requests are refused, running ones go on; returns when none is left (OK), or with
  // DEADLINE_EXCEEDED when drain_timeout_ms passed first. Workers' heartbeats are taken until the end.
  absl::Status Drain();

  ClusterView* view() { return &view_; }
  size_t requests_in_flight() const { return table_.running(); }

 private:
  Router(const v1::Config& config, rpc::Security security, std::unique_ptr<ApiKeys> keys, std::unique_ptr<ModelText> text,
         std::unique_ptr<tracing::Tracer> tracer, Metrics* metrics, Clock* clock);

  absl::Status OpenHttp();
  absl::Status OpenGrpc();
  // Makes this router known where workers look for routers, and learns of the others.
  absl::Status JoinRouters();
  void Tick();
  void BalanceRoles(uint64_t queued_tokens);  // on ticker_
  void UpdateHealth();
  void OnWorkerGone(const WorkerId& id, const std::string& why);
  void FillStatus(v1::ClusterStatus* status) const;
  // What the console shows, and may do.
  console::ConsoleSources ConsoleSources();
  absl::StatusOr<WorkerSnapshot> FindWorker(const std::string& name) const;
  void DrainWorker(const std::string& name, std::function<void(absl::Status)> done);
  void ChangeRole(const std::string& name, const std::string& role, std::function<void(absl::Status)> done);
  absl::Status Scale(int prefill, int decode) const;
  void CollectGauges();

  const v1::Config config_;
  const rpc::Security security_;
  const std::unique_ptr<ModelText> text_;
  const std::unique_ptr<tracing::Tracer> tracer_;  // null: nothing is traced here
  Metrics* const metrics_;
  Clock* const clock_;
  const absl::Time started_;
  RequestTable table_;
  ClusterView view_;
  Placement placement_;
  WorkerChannels channels_;
  RouterMetrics router_metrics_;
  std::atomic<bool> role_refused_{false};  // a call of calls_ said so
  WorkerCalls calls_;
  RequestLog log_;
  LoadHistory load_;
  DriverContext context_;
  const std::unique_ptr<ApiKeys> keys_;
  Intake intake_;
  WarmUp warm_up_;
  RoleBalancer roles_;  // the ticker's
  InferenceService inference_;
  kserve::KServeService kserve_;
  ClusterService cluster_;
  std::shared_ptr<void> collect_hook_;
  std::unique_ptr<membership::Announcement> announcement_;
  std::unique_ptr<membership::RouterDirectory> directory_;
  std::atomic<bool> draining_{false};
  http::OpenAiDoor openai_;
  console::Console console_;
  std::unique_ptr<rpc::HttpServer> http_;

  Mutex health_mu_;  // one change of health at a time
  bool serving_ ABSL_GUARDED_BY(health_mu_) = false;
  std::unique_ptr<rpc::Server> server_;  // set once, under health_mu_: workers may call before Start returns

  Mutex ticker_mu_;
  CondVar ticker_cv_;
  bool stop_ ABSL_GUARDED_BY(ticker_mu_) = false;
  std::thread ticker_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_H_
