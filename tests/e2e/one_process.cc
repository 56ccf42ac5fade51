#include "tests/e2e/one_process.h"

#include <gtest/gtest.h>

#include "common/config.h"
#include "common/mutex.h"
#include "engine/request_proto.h"

namespace baton::e2e {
namespace {

class CollectingSink : public engine::RequestSink {
 public:
  explicit CollectingSink(int n) : choices_(n) {}
  void OnToken(const engine::SampledToken& token) override {
    LocalChoice& choice = choices_[token.choice_index];
    choice.token_ids.push_back(token.token_id);
    choice.logprobs.push_back(token.logprob);
    if (token.finish_reason != engine::FinishReason::kNone) {
      choice.reason = engine::FinishReasonToProto(token.finish_reason);
    }
  }
  void OnDone(const absl::Status& status, const engine::RequestStats&) override {
    MutexLock lock(&mu_);
    status_ = status;
    done_ = true;
    changed_.SignalAll();
  }
  absl::StatusOr<std::vector<LocalChoice>> Wait() {
    MutexLock lock(&mu_);
    while (!done_) changed_.Wait(&mu_);
    if (!status_.ok()) return status_;
    return choices_;
  }

 private:
  std::vector<LocalChoice> choices_;  // written before done_, read after
  Mutex mu_;
  CondVar changed_;
  bool done_ = false;
  absl::Status status_;
};

}  // namespace

OneProcess::OneProcess(const std::string& model_path, const std::vector<std::string>& flags) {
  std::vector<std::string> all = {"--model=" + model_path, "--kv-memory-mib=256", "--threads=2", "--prefix-cache=false"};
  all.insert(all.end(), flags.begin(), flags.end());
  auto config = LoadConfig(ProcessRole::kWorker, all, {});
  if (!config.ok()) ADD_FAILURE() << config.status();
  auto model = engine::LoadedModel::Load(config->config, {});
  if (!model.ok()) ADD_FAILURE() << model.status();
  model_ = *std::move(model);
}

absl::StatusOr<std::vector<LocalChoice>> OneProcess::Run(const v1::GenerateRequest& request) {
  const auto& ids = request.token_ids().ids();
  const v1::SamplingParams sampling =
      ResolveDefaults(request.sampling(), ids.size(), request.sampling().seed(), model_->limits());
  auto parsed = engine::RequestFromProto(request.request_id(), ids, sampling, "", absl::InfiniteFuture(), model_->limits());
  if (!parsed.ok()) return parsed.status();
  if (absl::Status s = model_->Constrain(sampling, &*parsed); !s.ok()) return s;
  auto sink = std::make_shared<CollectingSink>(sampling.n());
  model_->engine()->Submit(*std::move(parsed), sink);
  return sink->Wait();
}

}  // namespace baton::e2e
