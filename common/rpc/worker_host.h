// What a prefill worker and a decode worker share as processes: ports, health, metrics, membership, drain, change of role. It
// knows nothing of engines; the owner passes functions.
#ifndef BATON_COMMON_RPC_WORKER_HOST_H_
#define BATON_COMMON_RPC_WORKER_HOST_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/membership/registrations.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "common/rpc/server.h"
#include "common/shutdown.h"
#include "common/stall_watch.h"
#include "proto/config.pb.h"
#include "proto/worker.grpc.pb.h"

namespace baton::rpc {

// Thread-safe functions of the worker's own parts.
struct WorkerHooks {
  std::function<v1::WorkerLoad()> load;
  // Null, or the names of cached prefixes since a version (HeartbeatOptions).
  std::function<v1::PrefixReport(uint64_t version)> prefixes;
  // From now on new work is refused with UNAVAILABLE; returns at once.
  std::function<void()> drain;
  // True when no request runs and no ticket is outstanding.
  std::function<bool()> idle;
  // Whether the worker's loop gets on; may be empty. Waits for nothing.
  std::function<Activity()> activity = {};
  // The router's answer to each heartbeat; may be empty. Returns at once.
  std::function<void(const v1::HeartbeatResponse&)> on_heartbeat = {};
};

// Thread contract: one owner, whose thread alone calls role() and incarnation(); the Worker service inside is called by gRPC.
class WorkerHost {
 public:
  // `role` is "prefill" or "decode", the first one. `signals` and `metrics` outlive the host. A signal before Serve ends the
  // process at once: nothing runs that would have to finish.
  WorkerHost(std::string role, const v1::Config& config, ShutdownSignals* signals, Metrics* metrics);
  ~WorkerHost();

  const std::string& name() const { return name_; }
  // These two change when Serve has returned kNextRole: one identity for each time that the worker joins.
  const std::string& role() const { return role_; }
  const std::string& incarnation() const { return incarnation_; }
  // It takes nothing new: it is to end, or to change its role. Thread-safe.
  bool draining() const;

  // Checks certificates and addresses, so that a worker does not load a model in vain. Errors as Security::FromConfig and
  // CheckAddress.
  absl::Status LoadSecurity();
  const Security& security() const { return security_; }

  // Opens the HTTP port, so that health answers "loading" while the model is read.
  absl::Status StartHttp();
  // Progress of loading, in [0, 1], to stdout and /health/ready.
  void ReportLoading(absl::string_view phase, double fraction);

  enum class ServeEnd {
    kStopped,
    kNextRole,  // by ChangeRole: only the HTTP port is open; role() is the new one, for which Serve is to be called again
  };
  // Opens the gRPC port (after LoadSecurity, else as plain text), registers with the routers and serves until drained; then
  // everything is closed. `info` needs what describes the model; name, role, addresses and process are filled in here.
  // `services` besides baton.v1.Worker; neither they nor the hooks are used any more when it has returned.
  // OK after a drain that finished; DEADLINE_EXCEEDED when drain_timeout_ms passed and requests were cut off;
  // FAILED_PRECONDITION, after a drain, when a router refuses this worker (another model or KV layout, or replaced by a
  // newer process of the same name) and no other one has it: serving on would be of no use.
  absl::StatusOr<ServeEnd> Serve(v1::WorkerInfo info, std::vector<NamedService> services, WorkerHooks hooks);

  // host:port; empty before Serve has opened it. For tests.
  std::string address() const;

 private:
  class Service;
  // Why Serve is to return. Shared with the signals' thread.
  struct Leave {
    Mutex mu;
    CondVar cv;
    // From the first Serve on: a signal drains instead of ending the process at once.
    bool served ABSL_GUARDED_BY(mu) = false;
    bool asked ABSL_GUARDED_BY(mu) = false;
    std::string next_role ABSL_GUARDED_BY(mu);  // empty: the process is to end
    absl::Time since ABSL_GUARDED_BY(mu) = absl::InfinitePast();  // it has had its role
  };

  absl::StatusOr<Security> SecurityFor(absl::string_view role) const;
  // The checks of Worker.ChangeRole, and its beginning. Any thread.
  absl::Status ChangeRole(const v1::ChangeRoleRequest& request, absl::string_view current);
  absl::StatusOr<ServeEnd> TakeNextRole(const absl::Status& drained);
  absl::Status StartRegistrations(v1::WorkerInfo info);
  std::unique_ptr<StallWatch> WatchForStalls() const;  // null: not wanted
  void OnRegistration(const std::string& router, const absl::Status& status, int others);
  absl::Status Drain(bool keep_http);

  std::string role_;
  const v1::Config config_;
  const std::string name_;
  std::string incarnation_;
  ShutdownSignals* const signals_;
  Metrics* const metrics_;
  Security security_;
  std::atomic<double> progress_{0};
  std::atomic<bool> serving_{false};
  const std::shared_ptr<Leave> leave_ = std::make_shared<Leave>();
  WorkerHooks hooks_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<membership::Registrations> registrations_;
  mutable Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
};

// cluster_key_file, which workers need. INVALID_ARGUMENT, saying how to make one, when it is not set.
absl::StatusOr<std::string> ClusterKeyFile(const v1::Config& config);

// main() of a worker: settings (or --help), signals, then `run`. An error goes to stderr and, as the event "failed", to
// stdout. Exit codes: 0 stopped as asked, 1 failed, 2 wrong settings.
int WorkerMain(absl::string_view role, int argc, char** argv,
               absl::FunctionRef<absl::Status(const v1::Config& config, ShutdownSignals* signals)> run);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_WORKER_HOST_H_
