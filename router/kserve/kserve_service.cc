#include "router/kserve/kserve_service.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "common/tracing/grpc_metadata.h"
#include "common/version.h"
#include "router/kserve/infer_call.h"

namespace baton::router::kserve {
namespace {

constexpr char kVersion1[] = "1";
constexpr char kPlatform[] = "baton";

struct Tensor {
  const char* name;
  const char* datatype;
  inference::DataType type;
  bool optional;
};
constexpr Tensor kInputs[] = {{"text_input", "BYTES", inference::TYPE_STRING, false},
                              {"stream", "BOOL", inference::TYPE_BOOL, true},
                              {"sampling_parameters", "BYTES", inference::TYPE_STRING, true},
                              {"exclude_input_in_output", "BOOL", inference::TYPE_BOOL, true},
                              {"max_tokens", "INT32", inference::TYPE_INT32, true}};
constexpr int64_t kAnySize = -1;  // a text of each choice
constexpr Tensor kOutput = {"text_output", "BYTES", inference::TYPE_STRING, false};

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context, const absl::Status& status = absl::OkStatus()) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

absl::Status KServeService::CheckModel(const std::string& name, const std::string& version) const {
  if (absl::Status status = intake_->CheckModel(name); !status.ok()) return status;
  if (version.empty() || version == kVersion1) return absl::OkStatus();
  return absl::NotFoundError("the model has the version 1 only");
}

absl::StatusOr<Caller> KServeService::CallerOf(const Context& context) const {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return intake_->CallerOf("");
  return intake_->CallerOf(absl::string_view(found->second.data(), found->second.size()));
}

grpc::ServerUnaryReactor* KServeService::ServerLive(Context* context, const inference::ServerLiveRequest*,
                                                    inference::ServerLiveResponse* response) {
  response->set_live(true);
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ServerReady(Context* context, const inference::ServerReadyRequest*,
                                                     inference::ServerReadyResponse* response) {
  response->set_ready(ready_());
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ModelReady(Context* context, const inference::ModelReadyRequest* request,
                                                    inference::ModelReadyResponse* response) {
  response->set_ready(CheckModel(request->name(), request->version()).ok() && ready_());
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ServerMetadata(Context* context, const inference::ServerMetadataRequest*,
                                                        inference::ServerMetadataResponse* response) {
  response->set_name("baton");
  response->set_version(kVersion);
  response->add_extensions("model_configuration");
  response->add_extensions("model_repository");
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ModelMetadata(Context* context,
                                                       const inference::ModelMetadataRequest* request,
                                                       inference::ModelMetadataResponse* response) {
  if (absl::Status status = CheckModel(request->name(), request->version()); !status.ok()) return Done(context, status);
  response->set_name(intake_->text().model_name());
  response->add_versions(kVersion1);
  response->set_platform(kPlatform);
  const auto fill = [](const Tensor& tensor, int64_t size, auto* out) {
    out->set_name(tensor.name);
    out->set_datatype(tensor.datatype);
    out->add_shape(size);
  };
  for (const Tensor& input : kInputs) fill(input, 1, response->add_inputs());
  fill(kOutput, kAnySize, response->add_outputs());
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                                                     inference::ModelConfigResponse* response) {
  if (absl::Status status = CheckModel(request->name(), request->version()); !status.ok()) return Done(context, status);
  inference::ModelConfig* config = response->mutable_config();
  config->set_name(intake_->text().model_name());
  config->set_platform(kPlatform);
  config->set_backend(kPlatform);
  config->mutable_model_transaction_policy()->set_decoupled(true);
  for (const Tensor& tensor : kInputs) {
    inference::ModelInput* input = config->add_input();
    input->set_name(tensor.name);
    input->set_data_type(tensor.type);
    input->add_dims(1);
    input->set_optional(tensor.optional);
  }
  inference::ModelOutput* output = config->add_output();
  output->set_name(kOutput.name);
  output->set_data_type(kOutput.type);
  output->add_dims(kAnySize);
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::RepositoryIndex(Context* context,
                                                         const inference::RepositoryIndexRequest* request,
                                                         inference::RepositoryIndexResponse* response) {
  const bool ready = ready_();
  if (request->ready() && !ready) return Done(context);
  auto* model = response->add_models();
  model->set_name(intake_->text().model_name());
  model->set_version(kVersion1);
  model->set_state(ready ? "READY" : "UNAVAILABLE");
  if (!ready) model->set_reason("waiting for workers");
  return Done(context);
}

grpc::ServerUnaryReactor* KServeService::ModelInfer(Context* context, const inference::ModelInferRequest* request,
                                                    inference::ModelInferResponse* response) {
  return InferCall::Start(intake_, *request, CallerOf(*context), rpc::DeadlineOf(*context), tracing::FromCall(*context),
                          response);
}

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
KServeService::ModelStreamInfer(Context* context) {
  return StreamCall::Start(intake_, CallerOf(*context), rpc::DeadlineOf(*context), tracing::FromCall(*context));
}

}  // namespace baton::router::kserve
