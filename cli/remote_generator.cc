#include "cli/remote_generator.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/membership/router_directory.h"
#include "common/read_file.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "common/validate_request.h"

namespace baton::cli {
namespace {

constexpr char kNoRouter[] = "NO_ROUTER";
constexpr size_t kMaxKeyFileBytes = 4096;
constexpr absl::Duration kUnaryTimeout = absl::Seconds(10);

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const v1::Config& config, absl::string_view what,
                                                           const std::string& address, rpc::PeerRole peer) {
  absl::StatusOr<rpc::Security> security =
      rpc::Security::FromConfig(config, {rpc::PeerRole::kAdmin, rpc::PeerRole::kClient});
  if (!security.ok()) return security.status();
  absl::StatusOr<std::vector<std::string>> addresses = membership::ParseAddresses(what, address);
  if (!addresses.ok()) return addresses.status();
  for (const std::string& one : *addresses) {
    if (absl::Status s = security->CheckAddress(what, one); !s.ok()) return s;
  }
  rpc::ChannelOptions options;
  options.security = *std::move(security);
  options.peer = peer;
  if (peer == rpc::PeerRole::kRouter && config.has_api_key_file()) {
    absl::StatusOr<std::string> key = ReadSmallFile(config.api_key_file(), kMaxKeyFileBytes);
    if (!key.ok()) return absl::Status(key.status().code(), absl::StrCat("api_key_file: ", key.status().message()));
    options.authorization = absl::StrCat("Bearer ", absl::StripAsciiWhitespace(*key));
  }
  // Of several the first that answers; gRPC takes a list of IPv4 addresses.
  return rpc::CreateChannel(addresses->size() == 1 ? address : absl::StrCat("ipv4:", absl::StrJoin(*addresses, ",")),
                            options);
}

}  // namespace

absl::Status ExplainCall(const grpc::Status& status, const std::string& address, grpc_connectivity_state state) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && state != GRPC_CHANNEL_READY) {
    return WithReason(absl::UnavailableError(absl::StrCat("No router answers at ", address, ": ",
                                                          absl::string_view(status.error_message()).substr(0, 200))),
                      kNoRouter);
  }
  return FromGrpcStatus(status);
}

bool IsNoRouter(const absl::Status& status) { return ReasonOf(status) == kNoRouter; }

std::string NextAfter(const absl::Status& status, const std::string& command) {
  if (IsNoRouter(status)) return "baton up --model FILE.gguf  (or --router HOST:PORT of a cluster that runs)";
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return absl::StrCat("baton ", command, " --help");
    case absl::StatusCode::kResourceExhausted:
      return "try again in a moment; `baton status` shows how full the workers are";
    case absl::StatusCode::kDeadlineExceeded:
      return "give it more time (--timeout), or fewer tokens (--max-tokens)";
    case absl::StatusCode::kUnauthenticated:
      return "--api-key-file FILE, or BATON_API_KEY_FILE: the file with your key";
    default:
      return "baton status";
  }
}

int ExitCodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> RouterChannel(const v1::Config& config) {
  return OpenChannel(config, "the router's address", config.router(), rpc::PeerRole::kRouter);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> WorkerChannel(const v1::Config& config, const std::string& address,
                                                             const std::string& role) {
  return OpenChannel(config, "the worker's address", address, rpc::ParseRole(role).value_or(rpc::PeerRole::kPrefill));
}

RemoteGenerator::RemoteGenerator(std::shared_ptr<grpc::Channel> channel, const std::string& address,
                                 absl::Duration timeout)
    : address_(address),
      timeout_(timeout),
      channel_(std::move(channel)),
      stub_(v1::Inference::NewStub(channel_)) {}

absl::Status RemoteGenerator::Generate(const v1::GenerateRequest& request,
                                       const std::function<void(const v1::GenerateResponse&)>& on_event) {
  grpc::ClientContext context;
  if (timeout_ != absl::InfiniteDuration()) rpc::SetDeadline(&context, absl::Now() + timeout_);
  {
    MutexLock lock(&mu_);
    running_ = &context;
  }
  v1::GenerateRequest joined = request;
  joined.set_tokens_per_message(kMaxTokensPerMessage);
  bool any = false;
  v1::GenerateResponse event;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub_->Generate(&context, joined);
  while (reader->Read(&event)) {
    any = true;
    if (!event.has_tokens()) {
      on_event(event);
      continue;
    }
    for (v1::TokenEvent& token : *event.mutable_tokens()->mutable_tokens()) {
      v1::GenerateResponse one;
      *one.mutable_token() = std::move(token);
      on_event(one);
    }
  }
  const grpc::Status status = reader->Finish();
  {
    MutexLock lock(&mu_);
    running_ = nullptr;
  }
  if (any && status.error_code() == grpc::StatusCode::UNAVAILABLE && channel_->GetState(false) != GRPC_CHANNEL_READY) {
    return absl::UnavailableError(absl::StrCat("The router at ", address_, " went away in the middle of the answer."));
  }
  return Explain(status);
}

bool RemoteGenerator::Cancel() {
  MutexLock lock(&mu_);
  if (running_ == nullptr) return false;
  running_->TryCancel();
  return true;
}

absl::Status RemoteGenerator::Explain(const grpc::Status& status) const {
  return ExplainCall(status, address_, channel_->GetState(false));
}

absl::Status RemoteGenerator::ListModels(v1::ListModelsResponse* models) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + kUnaryTimeout);
  return Explain(stub_->ListModels(&context, v1::ListModelsRequest(), models));
}

absl::Status RemoteGenerator::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + kUnaryTimeout);
  return Explain(stub_->Tokenize(&context, request, response));
}

absl::Status RemoteGenerator::Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + kUnaryTimeout);
  return Explain(stub_->Detokenize(&context, request, response));
}

}  // namespace baton::cli
