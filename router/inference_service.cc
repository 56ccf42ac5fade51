#include "router/inference_service.h"

#include <deque>
#include <string>
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
  absl::Status status = intake.CallerOf(Authorization(*context)).status();
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

// Serialized v1::GenerateResponses; of tokens that wait, up to `most` in one message.
struct GatherTokens {
  struct Item {
    std::string bytes;
    bool token = false;
  };
  void Take(std::deque<Item>* waiting, grpc::ByteBuffer* next) {
    size_t tokens = 0, bytes = 0;
    while (tokens < most && tokens < waiting->size() && (*waiting)[tokens].token) {
      bytes += (*waiting)[tokens++].bytes.size();
    }
    if (tokens <= 1) {
      const grpc::Slice one(waiting->front().bytes);
      *next = grpc::ByteBuffer(&one, 1);
      return waiting->pop_front();
    }
    // GenerateResponse.tokens: its number and type, its length, and the messages as they are (see TokenEvents).
    std::string joined(1, static_cast<char>(v1::GenerateResponse::kTokensFieldNumber << 3 | 2));
    joined.reserve(bytes + 8);
    for (size_t left = bytes; left > 0; left >>= 7) {
      joined.push_back(static_cast<char>((left & 0x7f) | (left > 0x7f) << 7));
    }
    for (; tokens > 0; --tokens) {
      joined += waiting->front().bytes;
      waiting->pop_front();
    }
    const grpc::Slice all(joined);
    *next = grpc::ByteBuffer(&all, 1);
  }

  size_t most = 1;
};

using Writer = rpc::StreamWriter<grpc::ByteBuffer, GatherTokens>;

class GrpcClientStream final : public ClientStream {
 public:
  explicit GrpcClientStream(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}
  void Push(v1::GenerateResponse response) override {
    writer_->Hold({response.SerializeAsString(), response.has_token()});
  }
  void Flush() override { writer_->Flush(); }
  void Finish(absl::Status status) override { writer_->Finish(std::move(status)); }

 private:
  const std::shared_ptr<Writer> writer_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* bytes) {
  absl::StatusOr<v1::GenerateRequest> request = v1::GenerateRequest();
  const absl::StatusOr<Caller> caller = intake_->CallerOf(Authorization(*context));
  absl::Status status = caller.status();
  if (status.ok()) status = FromWire(*bytes, &*request);
  if (!status.ok()) request = std::move(status);
  GatherTokens gather;
  if (request.ok() && request->tokens_per_message() > 1) gather.most = request->tokens_per_message();
  std::shared_ptr<Writer> writer;
  intake_->Generate(request, caller.value_or(Caller()), rpc::DeadlineOf(*context),
                    [&writer, gather](const std::shared_ptr<RequestDriver>& driver) {
                      // The writer holds the driver until the call ends, and the driver the writer until it is gone itself.
                      writer = Writer::Create({}, [driver] { driver->ClientGone(); }, gather);
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
