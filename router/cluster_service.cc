#include "router/cluster_service.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/status.h"

namespace baton::router {
namespace {

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

absl::Status ClusterService::CheckCaller(const grpc::CallbackServerContext& context,
                                         const v1::WorkerInfo& worker) const {
  if (!security_.tls()) return security_.CheckAddress("the worker's address", worker.address());
  const std::optional<rpc::PeerRole> role = rpc::RoleOf(*context.auth_context());
  if (role.has_value() && rpc::Name(*role) == absl::string_view(worker.role())) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("a certificate of ", role.has_value() ? rpc::Name(*role) : "no role",
                                                  " cannot register a worker of role \"",
                                                  absl::string_view(worker.role()).substr(0, 32), "\""));
}

grpc::ServerUnaryReactor* ClusterService::Register(grpc::CallbackServerContext* context,
                                                   const v1::RegisterRequest* request, v1::RegisterResponse* response) {
  const v1::WorkerInfo& worker = request->worker();
  absl::Status status = CheckCaller(*context, worker);
  if (status.ok()) status = view_->Register(worker);
  if (status.ok()) {
    LogInfo("worker registered", {{"worker", worker.name()},
                                  {"incarnation", worker.incarnation()},
                                  {"role", worker.role()},
                                  {"address", worker.address()}});
    response->set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(view_->options().heartbeat)));
    on_change_();
  } else {
    metrics_->WorkerRefused();
    LogWarn("worker refused", {{"reason", status.message()}});
  }
  return Done(context, status);
}

grpc::ServerUnaryReactor* ClusterService::Heartbeat(grpc::CallbackServerContext* context,
                                                    const v1::HeartbeatRequest* request,
                                                    v1::HeartbeatResponse* response) {
  uint64_t prefix_version = 0;
  const absl::Status status = view_->Heartbeat(*request, &prefix_version);
  response->set_prefix_version(prefix_version);
  if (status.ok()) {
    on_change_();
    for (v1::KvPeer& peer : view_->KvPeers({request->name(), request->incarnation()})) {
      *response->add_peers() = std::move(peer);
    }
  }
  return Done(context, status);
}

grpc::ServerUnaryReactor* ClusterService::Deregister(grpc::CallbackServerContext* context,
                                                     const v1::DeregisterRequest* request, v1::DeregisterResponse*) {
  const absl::Status status = view_->Deregister({request->name(), request->incarnation()});
  if (status.ok()) {
    LogInfo("worker left", {{"worker", request->name()}, {"incarnation", request->incarnation()}});
    on_change_();
  }
  return Done(context, status);
}

grpc::ServerUnaryReactor* ClusterService::GetClusterStatus(grpc::CallbackServerContext* context,
                                                           const v1::GetClusterStatusRequest*,
                                                           v1::ClusterStatus* response) {
  view_->FillStatus(response);
  fill_status_(response);
  return Done(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ClusterService::ExplainPlacement(grpc::CallbackServerContext* context,
                                                           const v1::ExplainPlacementRequest* request,
                                                           v1::PlacementExplanation* response) {
  absl::StatusOr<v1::PlacementExplanation> explanation = explain_(request->request_id());
  if (!explanation.ok()) return Done(context, explanation.status());
  *response = *std::move(explanation);
  return Done(context, absl::OkStatus());
}

}  // namespace baton::router
