// One Generate of vllm.grpc.engine.VllmEngine while it runs: tokens in, chunks and completions out.
#ifndef BATON_COMMON_VLLM_GENERATE_CALL_H_
#define BATON_COMMON_VLLM_GENERATE_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/rpc/stream_writer.h"
#include "common/vllm/engine_request.h"
#include "proto/worker.pb.h"

namespace baton::vllm {

// Thread contract: one caller of OnToken, Complete and Finish at a time; the rest is thread-safe. Lives until gRPC is done
// with the call and nobody holds it.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  using Writer = rpc::StreamWriter<pb::GenerateResponse>;

  static std::shared_ptr<GenerateCall> Create();
  // For gRPC.
  Writer* reactor() const { return writer_.get(); }

  // Before the first token.
  void Describe(const EngineRequest& request);
  // `cancel` runs once when the caller went away, aborts or is too late, at once if that has happened; never after
  // Finish. It must not block.
  void OnCancel(std::function<void()> cancel);
  // As if the caller had gone away.
  void Abort();

  void set_cached_tokens(uint32_t tokens) { cached_tokens_ = tokens; }
  // The next token of a choice; with a finish_reason the choice's completion follows it.
  void OnToken(const v1::SampledToken& token);
  // A prefill leg's end: choice 0 is complete, for now, with what the decode leg needs.
  void CompleteWith(const std::string& kv_transfer_params_json);
  bool has_tokens() const { return has_tokens_; }
  void Finish(absl::Status status);

 private:
  struct Choice {
    std::vector<uint32_t> ids;
    pb::OutputLogProbs logprobs;
  };
  GenerateCall() = default;
  void Cancel();
  void Complete(size_t index, const v1::SampledToken* last, const std::string* params);

  std::shared_ptr<Writer> writer_;
  bool stream_ = false;
  bool logprobs_ = false;
  std::vector<int32_t> stop_token_ids_;
  uint32_t prompt_tokens_ = 0;
  uint32_t cached_tokens_ = 0;
  bool has_tokens_ = false;
  std::vector<Choice> choices_;

  Mutex mu_;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton::vllm

#endif  // BATON_COMMON_VLLM_GENERATE_CALL_H_
