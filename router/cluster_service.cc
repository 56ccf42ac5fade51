#include "router/cluster_service.h"

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

grpc::ServerUnaryReactor* ClusterService::Register(grpc::CallbackServerContext* context,
                                                   const v1::RegisterRequest* request, v1::RegisterResponse* response) {
  const v1::WorkerInfo& worker = request->worker();
  const absl::Status status = view_->Register(worker);
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
  if (status.ok()) on_change_();
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
