// baton.v1.Inference: what clients call.
#ifndef BATON_ROUTER_INFERENCE_SERVICE_H_
#define BATON_ROUTER_INFERENCE_SERVICE_H_

#include "proto/inference.grpc.pb.h"
#include "router/intake.h"

namespace baton::router {

// The service with methods that get bytes: see wire.h.
using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_Detokenize<
        v1::Inference::WithRawCallbackMethod_ListModels<v1::Inference::Service>>>>;

// Thread-safe. The intake is not owned and outlives the service.
class InferenceService final : public RawInference {
 public:
  explicit InferenceService(Intake* intake) : intake_(intake) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  Intake* const intake_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_INFERENCE_SERVICE_H_
