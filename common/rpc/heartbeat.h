// A worker's side of membership: registers with the router, reports load, registers again when the router was
// restarted.
#ifndef BATON_COMMON_RPC_HEARTBEAT_H_
#define BATON_COMMON_RPC_HEARTBEAT_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/rpc/security.h"
#include "proto/cluster.grpc.pb.h"

namespace baton::rpc {

struct HeartbeatOptions {
  std::string router;                               // host:port
  v1::WorkerInfo worker;                            // sent at each registration; the incarnation stays
  absl::Duration period = absl::Milliseconds(500);  // the router's answer overrides it
  absl::Duration min_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(5);
  Security security;
  std::function<v1::WorkerLoad()> load;
  // Names of cached prefixes: what changed since the version the router has. Null: none are told.
  std::function<v1::PrefixReport(uint64_t version)> prefixes;
  std::function<void(const v1::HeartbeatResponse&)> on_answer;  // to each heartbeat that was answered
  // Tells of changes only: OK when registered; FAILED_PRECONDITION when the router refuses this worker (it tries again
  // at max_backoff: the cluster's model may change); UNAVAILABLE and the like when the router cannot be reached.
  std::function<void(const absl::Status&)> on_change;
};

// Thread contract: thread-safe. Callbacks run on this object's own thread.
class Heartbeat {
 public:
  // Starts at once.
  explicit Heartbeat(HeartbeatOptions options);
  // Stops without telling the router, unless Deregister came first.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Heartbeats say `draining` from now on; one is sent at once.
  void SetDraining();
  // Stops, then tells the router (within a second). For a clean exit.
  void Deregister();
  bool registered() const;

 private:
  void Run();
  void Stop();
  absl::Status Register();
  absl::Status Beat(bool draining);
  void Report(const absl::Status& status);
  // One unary call that Stop can break off.
  template <class Method, class Request, class Response>
  absl::Status Call(Method method, const Request& request, Response* response);

  HeartbeatOptions options_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
  uint64_t prefix_version_ = 0;                              // thread_ only: what the router has
  absl::Duration period_;                                   // thread_ only
  absl::StatusCode reported_ = absl::StatusCode::kUnknown;  // thread_ only
  mutable Mutex mu_;
  CondVar cv_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::thread thread_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HEARTBEAT_H_
