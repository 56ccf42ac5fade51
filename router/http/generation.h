// One call of /v1/chat/completions or /v1/completions while it runs: some prompts, some choices each, answered in one
// piece or as server-sent events.
#ifndef BATON_ROUTER_HTTP_GENERATION_H_
#define BATON_ROUTER_HTTP_GENERATION_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/rpc/http_message.h"
#include "common/tracing/span.h"
#include "router/http/answer_json.h"
#include "router/http/openai_request.h"
#include "router/http/tool_calls.h"
#include "router/intake.h"

namespace baton::router::http {

// Thread-safe. Lives until every prompt's driver has said its last word and the client is gone or answered.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Options {
    std::string id;                              // of the answer; also names the request in logs
    Caller caller;
    std::optional<tracing::SpanContext> trace;   // the client's
    std::map<std::string, std::string> headers;  // of every answer
    ToolFormat tool_format = ToolFormat::kNone;
    std::function<void(int http_code)> on_status;  // once
  };

  // Runs `request`; `exchange` hears what comes of it. The intake outlives the generation.
  static void Start(OpenAiRequest request, Options options, Intake* intake,
                    std::shared_ptr<rpc::HttpExchange> exchange);

 private:
  class PromptStream;

  struct Choice {
    explicit Choice(bool chat) : logprobs(chat) {}
    std::optional<ToolCallParser> tools;
    LogprobsJson logprobs;
    std::vector<std::string> tool_ids;
    bool begun = false;  // its first chunk is out
    // In one piece:
    std::string text;
    Json tool_calls = Json::array();
    Json all_logprobs;
    Json token_ids = Json::array();
    std::string finish_reason;
    Json stop_reason;
  };

  Generation(OpenAiRequest request, Options options, Intake* intake, std::shared_ptr<rpc::HttpExchange> exchange);

  void Run();
  void ClientGone();
  // By the prompts' drivers.
  void OnEvent(size_t prompt, const v1::GenerateResponse& event);
  void OnFinish(size_t prompt, const absl::Status& status);

  void OnToken(size_t prompt, const v1::TokenEvent& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnChoiceFinished(size_t prompt, const v1::ChoiceFinished& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Delta MakeDelta(Choice* choice, const std::string& text, bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One-piece answers keep it, streams send it.
  void Take(size_t index, Delta delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendChunk(size_t index, Json delta, const Json& logprobs, const Json& finish_reason, const Json& stop_reason,
                 const Delta* tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendEvent(const Json& json) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  rpc::HttpResponse WholeAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Json ChoiceJson(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Usage UsageSoFar() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string EchoOf(size_t prompt) const;
  const v1::SamplingParams& sampling() const { return request_.prompts[0].sampling(); }
  const TextMaker& text() const { return intake_->text(); }

  const OpenAiRequest request_;
  const Options options_;
  Intake* const intake_;
  const std::shared_ptr<rpc::HttpExchange> exchange_;
  AnswerHead head_;

  Mutex mu_;
  std::vector<std::shared_ptr<RequestDriver>> drivers_ ABSL_GUARDED_BY(mu_);  // null: not started, or over
  std::vector<bool> ended_ ABSL_GUARDED_BY(mu_);                              // by prompt: its driver is done
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mu_);                          // prompt * n + choice
  std::vector<v1::Usage> usage_ ABSL_GUARDED_BY(mu_);                         // of each prompt
  size_t finished_ ABSL_GUARDED_BY(mu_) = 0;                                  // prompts
  bool streaming_ ABSL_GUARDED_BY(mu_) = false;                               // the header is out
  bool over_ ABSL_GUARDED_BY(mu_) = false;                                    // answered, failed or gone
};

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_GENERATION_H_
