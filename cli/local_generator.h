// Generates in this process: the same engine and the same text library as a cluster, without the cluster. What a
// cluster answers must equal what this answers, token for token.
#ifndef BATON_CLI_LOCAL_GENERATOR_H_
#define BATON_CLI_LOCAL_GENERATOR_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/generator.h"
#include "cli/local_text.h"
#include "common/mutex.h"
#include "engine/runtime.h"
#include "proto/config.pb.h"

namespace baton::cli {

class LocalGenerator : public Generator {
 public:
  // Loads the model; `progress` as engine::LoadedModel::Options. `timeout` of each request.
  static absl::StatusOr<std::unique_ptr<LocalGenerator>> Load(
      const v1::Config& config, absl::Duration timeout,
      const std::function<void(absl::string_view phase, double fraction)>& progress);

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateResponse&)>& on_event) override;
  bool Cancel() override;

 private:
  class Sink;
  struct Run;

  LocalGenerator() = default;
  absl::Status Admit(const v1::GenerateRequest& request, Run* run) const;
  void HandleToken(const engine::SampledToken& token, Run* run) const;
  void SendSummary(const engine::RequestStats& stats, Run* run) const;

  absl::Duration timeout_;
  std::unique_ptr<LocalText> text_;
  std::unique_ptr<engine::LoadedModel> model_;
  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::string running_ ABSL_GUARDED_BY(mu_);  // request id; empty when none runs
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOCAL_GENERATOR_H_
