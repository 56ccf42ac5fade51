// inference.GRPCInferenceService: the KServe v2 protocol and Triton's stream, for clients that people already have.
#ifndef BATON_ROUTER_KSERVE_KSERVE_SERVICE_H_
#define BATON_ROUTER_KSERVE_KSERVE_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/compat/kserve.grpc.pb.h"
#include "router/intake.h"

namespace baton::router::kserve {

// Thread-safe. The intake is not owned and outlives the service. `ready`: requests can be served.
class KServeService final : public inference::GRPCInferenceService::CallbackService {
 public:
  KServeService(Intake* intake, std::function<bool()> ready) : intake_(intake), ready_(std::move(ready)) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* ServerLive(Context* context, const inference::ServerLiveRequest* request,
                    inference::ServerLiveResponse* response) override;
  Unary* ServerReady(Context* context, const inference::ServerReadyRequest* request,
                     inference::ServerReadyResponse* response) override;
  Unary* ModelReady(Context* context, const inference::ModelReadyRequest* request,
                    inference::ModelReadyResponse* response) override;
  Unary* ServerMetadata(Context* context, const inference::ServerMetadataRequest* request,
                        inference::ServerMetadataResponse* response) override;
  Unary* ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                       inference::ModelMetadataResponse* response) override;
  Unary* ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                     inference::ModelConfigResponse* response) override;
  Unary* RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                         inference::RepositoryIndexResponse* response) override;
  Unary* ModelInfer(Context* context, const inference::ModelInferRequest* request,
                    inference::ModelInferResponse* response) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>* ModelStreamInfer(
      Context* context) override;

 private:
  absl::StatusOr<Caller> CallerOf(const Context& context) const;
  // NOT_FOUND unless it is the model that is served, in its only version.
  absl::Status CheckModel(const std::string& name, const std::string& version) const;

  Intake* const intake_;
  const std::function<bool()> ready_;
};

}  // namespace baton::router::kserve

#endif  // BATON_ROUTER_KSERVE_KSERVE_SERVICE_H_
