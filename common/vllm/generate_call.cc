#include "common/vllm/generate_call.h"

#include <algorithm>
#include <utility>

namespace baton::vllm {
namespace {

void AddLogprobs(const v1::SampledToken& token, pb::OutputLogProbs* to) {
  to->add_token_logprobs(token.logprob());
  to->add_token_ids(static_cast<uint32_t>(token.token_id()));
  pb::TopLogProbs* top = to->add_top_logprobs();
  for (const v1::TopLogprob& other : token.top_logprobs()) {
    top->add_values(other.logprob());
    top->add_token_ids(static_cast<uint32_t>(other.token_id()));
  }
}

const char* FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_CANCELLED:
    case v1::FINISH_REASON_ERROR:
      return "abort";
    default:
      return "length";
  }
}

}  // namespace

std::shared_ptr<GenerateCall> GenerateCall::Create() {
  std::shared_ptr<GenerateCall> call(new GenerateCall);
  // The writer drops this when the call is done.
  call->writer_ = Writer::Create({}, [call] { call->Cancel(); });
  return call;
}

void GenerateCall::Describe(const EngineRequest& request) {
  stream_ = request.stream;
  logprobs_ = request.sampling.has_logprobs();
  stop_token_ids_.assign(request.sampling.stop_token_ids().begin(), request.sampling.stop_token_ids().end());
  prompt_tokens_ = static_cast<uint32_t>(request.prompt_token_ids.size());
  choices_.resize(static_cast<size_t>(std::max(request.sampling.n(), 1)));
}

void GenerateCall::OnCancel(std::function<void()> cancel) {
  {
    MutexLock lock(&mu_);
    if (finished_) return;
    if (!cancelled_) {
      cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

void GenerateCall::Cancel() {
  std::function<void()> cancel;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    cancel = std::exchange(cancel_, nullptr);
  }
  if (cancel) cancel();
}

void GenerateCall::Abort() {
  Cancel();
  Finish(absl::CancelledError("the request was aborted"));
}

void GenerateCall::OnToken(const v1::SampledToken& token) {
  if (token.choice_index() >= choices_.size()) return;  // the engine's promise
  has_tokens_ = true;
  Choice& choice = choices_[token.choice_index()];
  choice.ids.push_back(static_cast<uint32_t>(token.token_id()));
  if (logprobs_) AddLogprobs(token, &choice.logprobs);
  if (stream_) {
    pb::GenerateResponse response;
    pb::GenerateStreamChunk* chunk = response.mutable_chunk();
    chunk->add_token_ids(choice.ids.back());
    chunk->set_prompt_tokens(prompt_tokens_);
    chunk->set_completion_tokens(static_cast<uint32_t>(choice.ids.size()));
    chunk->set_cached_tokens(cached_tokens_);
    if (logprobs_) AddLogprobs(token, chunk->mutable_output_logprobs());
    chunk->set_index(token.choice_index());
    writer_->Push(std::move(response));
  }
  if (token.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) Complete(token.choice_index(), &token, nullptr);
}

void GenerateCall::CompleteWith(const std::string& params) { Complete(0, nullptr, &params); }

void GenerateCall::Complete(size_t index, const v1::SampledToken* last, const std::string* params) {
  Choice& choice = choices_[index];
  pb::GenerateResponse response;
  pb::GenerateComplete* complete = response.mutable_complete();
  complete->mutable_output_ids()->Assign(choice.ids.begin(), choice.ids.end());
  complete->set_finish_reason(last == nullptr ? "length" : FinishReasonName(last->finish_reason()));
  complete->set_prompt_tokens(prompt_tokens_);
  complete->set_completion_tokens(static_cast<uint32_t>(choice.ids.size()));
  complete->set_cached_tokens(cached_tokens_);
  if (logprobs_) *complete->mutable_output_logprobs() = std::move(choice.logprobs);
  complete->set_index(static_cast<uint32_t>(index));
  // The end of text is no match; an id that the request named is.
  if (last != nullptr && last->finish_reason() == v1::FINISH_REASON_STOP &&
      std::find(stop_token_ids_.begin(), stop_token_ids_.end(), last->token_id()) != stop_token_ids_.end()) {
    complete->set_matched_token_id(static_cast<uint32_t>(last->token_id()));
  }
  if (params != nullptr) complete->set_kv_transfer_params_json(*params);
  writer_->Push(std::move(response));
}

void GenerateCall::Finish(absl::Status status) {
  std::function<void()> drop;
  {
    MutexLock lock(&mu_);
    finished_ = true;
    drop = std::exchange(cancel_, nullptr);
  }
  writer_->Finish(std::move(status));
}

}  // namespace baton::vllm
