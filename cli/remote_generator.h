// Generates through a router, by gRPC.
#ifndef BATON_CLI_REMOTE_GENERATOR_H_
#define BATON_CLI_REMOTE_GENERATOR_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/generator.h"
#include "common/mutex.h"
#include "proto/config.pb.h"
#include "proto/inference.grpc.pb.h"

namespace baton::cli {

// What a failed call to the router at `address` means for a person: that no router answers there, when that is so
// (UNAVAILABLE with reason NO_ROUTER), else the router's own words.
absl::Status ExplainCall(const grpc::Status& status, const std::string& address, grpc_connectivity_state state);
// True for what ExplainCall returns when no router answers.
bool IsNoRouter(const absl::Status& status);
// The command to try after `status`.
std::string NextAfter(const absl::Status& status, const std::string& command);
// Exit code of a failed request: 2 when the request itself is wrong, else 1.
int ExitCodeOf(const absl::Status& status);

// A channel to the router, encrypted where the settings say so. Errors as rpc::Security::FromConfig and CheckAddress.
absl::StatusOr<std::shared_ptr<grpc::Channel>> RouterChannel(const v1::Config& config);
// The same to a worker; `role` as WorkerInfo.role spells it.
absl::StatusOr<std::shared_ptr<grpc::Channel>> WorkerChannel(const v1::Config& config, const std::string& address,
                                                             const std::string& role);

class RemoteGenerator : public Generator {
 public:
  // `timeout` of each request; absl::InfiniteDuration(): the router's default.
  RemoteGenerator(std::shared_ptr<grpc::Channel> channel, const std::string& address, absl::Duration timeout);

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateResponse&)>& on_event) override;
  bool Cancel() override;

  // OK with what the router serves.
  absl::Status ListModels(v1::ListModelsResponse* models);
  absl::Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
  absl::Status Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response);

 private:
  absl::Status Explain(const grpc::Status& status) const;

  const std::string address_;
  const absl::Duration timeout_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  Mutex mu_;
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace baton::cli

#endif  // BATON_CLI_REMOTE_GENERATOR_H_
