// baton.v1.Cluster: what workers and operators call.
#ifndef BATON_ROUTER_CLUSTER_SERVICE_H_
#define BATON_ROUTER_CLUSTER_SERVICE_H_

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/rpc/security.h"
#include "proto/cluster.grpc.pb.h"
#include "router/cluster_view.h"
#include "router/router_metrics.h"

namespace baton::router {

// Thread-safe. Nothing is owned; all outlives the service.
class ClusterService final : public v1::Cluster::CallbackService {
 public:
  // Under TLS a worker registers as what its certificate says, and in plain text only from loopback (or where that is
  // allowed). `on_change` after each change of membership; `fill_status` adds what the view does not know;
  // `explain` tells of one request's placements.
  ClusterService(ClusterView* view, RouterMetrics* metrics, rpc::Security security, std::function<void()> on_change,
                 std::function<void(v1::ClusterStatus*)> fill_status,
                 std::function<absl::StatusOr<v1::PlacementExplanation>(const std::string&)> explain)
      : view_(view),
        metrics_(metrics),
        security_(std::move(security)),
        on_change_(std::move(on_change)),
        fill_status_(std::move(fill_status)),
        explain_(std::move(explain)) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context, const v1::DeregisterRequest* request,
                                       v1::DeregisterResponse* response) override;
  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* context,
                                             const v1::GetClusterStatusRequest* request,
                                             v1::ClusterStatus* response) override;
  grpc::ServerUnaryReactor* ExplainPlacement(grpc::CallbackServerContext* context,
                                             const v1::ExplainPlacementRequest* request,
                                             v1::PlacementExplanation* response) override;

 private:
  absl::Status CheckCaller(const grpc::CallbackServerContext& context, const v1::WorkerInfo& worker) const;

  ClusterView* const view_;
  RouterMetrics* const metrics_;
  const rpc::Security security_;
  const std::function<void()> on_change_;
  const std::function<void(v1::ClusterStatus*)> fill_status_;
  const std::function<absl::StatusOr<v1::PlacementExplanation>(const std::string&)> explain_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CLUSTER_SERVICE_H_
