// baton.v1.Inference: what clients call.
#ifndef BATON_ROUTER_INFERENCE_SERVICE_H_
#define BATON_ROUTER_INFERENCE_SERVICE_H_

#include <atomic>

#include "proto/inference.grpc.pb.h"
#include "router/model_text.h"
#include "router/request_driver.h"

namespace baton::router {

struct InferenceOptions {
  absl::Duration default_deadline = absl::Minutes(10);  // of a request that has none
};

// The service with methods that get bytes: see wire.h.
using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_Detokenize<
        v1::Inference::WithRawCallbackMethod_ListModels<v1::Inference::Service>>>>;

// Thread-safe. Nothing is owned; all outlives the service and its requests.
class InferenceService final : public RawInference {
 public:
  InferenceService(const InferenceOptions& options, const ModelText* text, ClusterView* view,
                   const DriverContext* context)
      : options_(options), text_(text), view_(view), context_(context) {}

  // From now on Generate is refused with UNAVAILABLE.
  void Drain() { draining_ = true; }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

  uint64_t requests_total() const { return requests_total_; }

 private:
  // Stations before the first: validation, tokenizing, defaults.
  absl::StatusOr<AdmittedRequest> Prepare(const v1::GenerateRequest& request, std::string request_id) const;
  // The router's limits and the workers', whichever is smaller.
  ModelLimits Limits() const;
  absl::Status CheckModel(const std::string& model) const;
  absl::StatusOr<v1::TokenizeResponse> TokenizeOne(const v1::TokenizeRequest& request) const;
  absl::StatusOr<v1::DetokenizeResponse> DetokenizeOne(const v1::DetokenizeRequest& request) const;
  absl::StatusOr<v1::ListModelsResponse> ListAll(const v1::ListModelsRequest& request) const;

  const InferenceOptions options_;
  const ModelText* const text_;
  ClusterView* const view_;
  const DriverContext* const context_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> requests_total_{0};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_INFERENCE_SERVICE_H_
