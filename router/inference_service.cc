#include "router/inference_service.h"

#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/stream_writer.h"
#include "common/status.h"
#include "router/wire.h"

namespace baton::router {
namespace {

// One unary call: bytes, request, `answer`, bytes.
template <class Request, class Answer>
grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                                const Answer& answer) {
  Request request;
  absl::Status status = FromWire(*in, &request);
  if (status.ok()) {
    const auto response = answer(request);
    status = response.status();
    if (status.ok()) *out = ToWire(*response);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

using Writer = rpc::StreamWriter<grpc::ByteBuffer>;  // of v1::GenerateResponse

class GrpcClientStream final : public ClientStream {
 public:
  explicit GrpcClientStream(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}
  void Push(v1::GenerateResponse response) override { writer_->Push(ToWire(response)); }
  void Finish(absl::Status status) override { writer_->Finish(std::move(status)); }

 private:
  const std::shared_ptr<Writer> writer_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* bytes) {
  absl::StatusOr<v1::GenerateRequest> request = v1::GenerateRequest();
  if (absl::Status status = FromWire(*bytes, &*request); !status.ok()) request = std::move(status);
  std::shared_ptr<Writer> writer;
  intake_->Generate(request, rpc::DeadlineOf(*context), [&writer](const std::shared_ptr<RequestDriver>& driver) {
    // The writer holds the driver until the call ends, and the driver the writer until it is gone itself.
    writer = Writer::Create({}, [driver] { driver->ClientGone(); });
    return std::make_unique<GrpcClientStream>(writer);
  });
  return writer.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::TokenizeRequest>(context, request, response,
                                    [this](const auto& r) { return intake_->Tokenize(r); });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::DetokenizeRequest>(context, request, response,
                                      [this](const auto& r) { return intake_->Detokenize(r); });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::ListModelsRequest>(context, request, response, [this](const auto&) {
    return absl::StatusOr<v1::ListModelsResponse>(intake_->ListModels());
  });
}

}  // namespace baton::router
