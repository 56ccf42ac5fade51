// What every cluster is compared with: one process that runs one request at a time.
#ifndef BATON_TESTS_E2E_ONE_PROCESS_H_
#define BATON_TESTS_E2E_ONE_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime.h"
#include "proto/inference.pb.h"

namespace baton::e2e {

struct LocalChoice {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
};

// No prefix cache: nothing can leak from one request into another. Loading that fails is the test's failure.
class OneProcess {
 public:
  explicit OneProcess(const std::string& model_path, const std::vector<std::string>& flags = {});
  // A prompt of token ids, and a seed.
  absl::StatusOr<std::vector<LocalChoice>> Run(const v1::GenerateRequest& request);

 private:
  std::unique_ptr<engine::LoadedModel> model_;
};

}  // namespace baton::e2e

#endif  // BATON_TESTS_E2E_ONE_PROCESS_H_
