#include "router/inference_service.h"

#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/stream_writer.h"
#include "common/status.h"
#include "common/tracing/grpc_metadata.h"
#include "router/wire.h"

namespace baton::router {
namespace {

std::string Authorization(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  return found == context.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

// One unary call, by a caller who may: bytes, request, `answer`, bytes.
template <class Request, class Answer>
grpc::ServerUnaryReactor* Unary(const Intake& intake, grpc::CallbackServerContext* context, const grpc::ByteBuffer* in,
                                grpc::ByteBuffer* out, const Answer& answer) {
  Request request;
  absl::Status status = intake.TenantOf(Authorization(*context)).status();
  if (status.ok()) status = FromWire(*in, &request);
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
  const absl::StatusOr<std::string> tenant = intake_->TenantOf(Authorization(*context));
  absl::Status status = tenant.status();
  if (status.ok()) status = FromWire(*bytes, &*request);
  if (!status.ok()) request = std::move(status);
  std::shared_ptr<Writer> writer;
  intake_->Generate(request, tenant.value_or(""), rpc::DeadlineOf(*context),
                    [&writer](const std::shared_ptr<RequestDriver>& driver) {
                      // The writer holds the driver until the call ends, and the driver the writer until it is gone itself.
                      writer = Writer::Create({}, [driver] { driver->ClientGone(); });
                      return std::make_unique<GrpcClientStream>(writer);
                    },
                    tracing::FromCall(*context));
  return writer.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::TokenizeRequest>(*intake_, context, request, response,
                                    [this](const auto& r) { return intake_->Tokenize(r); });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::DetokenizeRequest>(*intake_, context, request, response,
                                      [this](const auto& r) { return intake_->Detokenize(r); });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Unary<v1::ListModelsRequest>(*intake_, context, request, response, [this](const auto&) {
    return absl::StatusOr<v1::ListModelsResponse>(intake_->ListModels());
  });
}

}  // namespace baton::router
