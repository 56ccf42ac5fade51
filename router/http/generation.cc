#include "router/http/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/validate_request.h"
#include "router/http/http_errors.h"

namespace baton::router::http {

class Generation::PromptStream final : public ClientStream {
 public:
  PromptStream(std::shared_ptr<Generation> generation, size_t prompt)
      : generation_(std::move(generation)), prompt_(prompt) {}
  void Push(v1::GenerateResponse response) override { generation_->OnEvent(prompt_, response); }
  void Finish(absl::Status status) override { generation_->OnFinish(prompt_, status); }

 private:
  const std::shared_ptr<Generation> generation_;
  const size_t prompt_;
};

Generation::Generation(OpenAiRequest request, Options options, Intake* intake,
                       std::shared_ptr<rpc::HttpExchange> exchange)
    : request_([&] {
        request.n = std::clamp(request.n, 1, kMaxChoices);  // the validator refuses others
        return std::move(request);
      }()),
      options_(std::move(options)),
      intake_(intake),
      exchange_(std::move(exchange)) {
  head_.chat = request_.chat;
  head_.id = options_.id;
  head_.created = absl::ToUnixSeconds(absl::Now());
  head_.model = intake_->text().model_name();
  head_.fingerprint = absl::StrCat("baton-", intake_->text().tokenizer_fingerprint().substr(0, 12));
  head_.logprobs = request_.logprobs;
  head_.token_ids = request_.return_token_ids;
  drivers_.resize(request_.prompts.size());
  ended_.resize(request_.prompts.size());
  usage_.resize(request_.prompts.size());
  for (size_t i = 0; i < request_.prompts.size() * static_cast<size_t>(request_.n); ++i) {
    choices_.emplace_back(request_.chat);
    if (!request_.tools.empty()) choices_.back().tools.emplace(options_.tool_format, request_.tools);
  }
}

void Generation::Start(OpenAiRequest request, Options options, Intake* intake,
                       std::shared_ptr<rpc::HttpExchange> exchange) {
  std::shared_ptr<Generation> generation(
      new Generation(std::move(request), std::move(options), intake, std::move(exchange)));
  generation->Run();
}

void Generation::Run() {
  const std::shared_ptr<Generation> self = shared_from_this();
  // The exchange holds the generation until the answer is out; each prompt's driver does until its end.
  exchange_->OnGone([self] { self->ClientGone(); });
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    {
      MutexLock lock(&mu_);
      if (over_) return;
    }
    absl::StatusOr<v1::GenerateRequest> request = request_.prompts[i];
    request->set_request_id(request_.prompts.size() == 1 ? options_.id : absl::StrCat(options_.id, "-", i));
    std::shared_ptr<RequestDriver> driver;
    intake_->Generate(request, options_.caller, absl::InfiniteFuture(),
                      [&](const std::shared_ptr<RequestDriver>& made) {
                        driver = made;
                        return std::make_unique<PromptStream>(self, i);
                      },
                      options_.trace);
    // Only now may another prompt's failure end it: before, it is not in the router's table.
    bool late;
    {
      MutexLock lock(&mu_);
      late = over_;
      if (!late && !ended_[i]) drivers_[i] = driver;
    }
    if (late) driver->ClientGone();  // nobody told it; one that has ended does not mind
  }
}

void Generation::ClientGone() {
  std::vector<std::shared_ptr<RequestDriver>> drivers;
  {
    MutexLock lock(&mu_);
    if (over_) return;
    over_ = true;
    if (!streaming_) options_.on_status(499);
    drivers = drivers_;
  }
  for (const std::shared_ptr<RequestDriver>& driver : drivers) {
    if (driver != nullptr) driver->ClientGone();
  }
}

void Generation::OnFinish(size_t prompt, const absl::Status& status) {
  std::vector<std::shared_ptr<RequestDriver>> others;
  std::shared_ptr<RequestDriver> own;
  {
    MutexLock lock(&mu_);
    own = std::exchange(drivers_[prompt], nullptr);
    ended_[prompt] = true;
    if (over_) return;
    if (!status.ok()) {
      over_ = true;
      others = drivers_;
      Fail(status);
    } else if (++finished_ == request_.prompts.size()) {
      over_ = true;
      Complete();
    }
  }
  for (const std::shared_ptr<RequestDriver>& driver : others) {
    if (driver != nullptr) driver->ClientGone();
  }
}

void Generation::OnEvent(size_t prompt, const v1::GenerateResponse& event) {
  MutexLock lock(&mu_);
  if (over_) return;
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      usage_[prompt].set_prompt_tokens(event.started().prompt_tokens());
      return;
    case v1::GenerateResponse::kToken:
      return OnToken(prompt, event.token());
    case v1::GenerateResponse::kFinished:
      return OnChoiceFinished(prompt, event.finished());
    case v1::GenerateResponse::kSummary:
      usage_[prompt] = event.summary().usage();
      return;
    case v1::GenerateResponse::kTokens:  // only gRPC's own door joins tokens
    case v1::GenerateResponse::EVENT_NOT_SET:
      return;
  }
}

Delta Generation::MakeDelta(Choice* choice, const std::string& text, bool last) {
  Delta delta;
  if (!choice->tools.has_value()) {
    delta.content = text;
    return delta;
  }
  ToolPiece piece = choice->tools->Push(text);
  if (last) {
    ToolPiece rest = choice->tools->Finish();
    piece.content += rest.content;
    piece.deltas.insert(piece.deltas.end(), rest.deltas.begin(), rest.deltas.end());
  }
  delta.content = std::move(piece.content);
  for (ToolDelta& tool : piece.deltas) {
    if (tool.index == 0 || !request_.one_tool_call) delta.tools.push_back(std::move(tool));
  }
  return delta;
}

void Generation::OnToken(size_t prompt, const v1::TokenEvent& token) {
  const size_t index = prompt * static_cast<size_t>(request_.n) + token.choice_index();
  usage_[prompt].set_completion_tokens(usage_[prompt].completion_tokens() + 1);
  Delta delta = MakeDelta(&choices_[index], token.text(), /*last=*/false);
  if (head_.logprobs || head_.token_ids) delta.tokens.push_back(token);
  Take(index, std::move(delta));
}

void Generation::OnChoiceFinished(size_t prompt, const v1::ChoiceFinished& finished) {
  const size_t index = prompt * static_cast<size_t>(request_.n) + finished.choice_index();
  Choice& choice = choices_[index];
  Delta delta = MakeDelta(&choice, finished.text(), /*last=*/true);
  choice.finish_reason = FinishReasonName(finished, choice.tools.has_value() && choice.tools->num_calls() > 0);
  choice.stop_reason = StopReasonJson(finished, sampling());
  if (request_.chat || !request_.stream) Take(index, std::exchange(delta, {}));
  if (!request_.stream) return;
  SendChunk(index, request_.chat ? Json::object() : Json(delta.content), nullptr, choice.finish_reason,
            choice.stop_reason, nullptr);
}

void Generation::Take(size_t index, Delta delta) {
  Choice& choice = choices_[index];
  Json logprobs = head_.logprobs ? choice.logprobs.Next(delta.tokens, text()) : Json();
  if (request_.stream) {
    if (!streaming_) BeginStream();
    if (!std::exchange(choice.begun, true)) {
      if (request_.chat) SendChunk(index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, nullptr, nullptr);
      if (request_.echo) SendChunk(index, EchoOf(index / request_.n), nullptr, nullptr, nullptr, nullptr);
    }
    if (delta.content.empty() && delta.tools.empty() && delta.tokens.empty()) return;
    Json part = delta.content;
    if (request_.chat) {
      part = Json::object();
      if (!delta.content.empty() || delta.tools.empty()) part["content"] = delta.content;
      if (!delta.tools.empty()) part["tool_calls"] = ToolDeltasJson(delta.tools, &choice.tool_ids);
    }
    return SendChunk(index, std::move(part), logprobs, nullptr, nullptr, &delta);
  }
  choice.text += delta.content;
  if (head_.logprobs) AppendLogprobs(&choice.all_logprobs, logprobs);
  for (const v1::TokenEvent& token : delta.tokens) choice.token_ids.push_back(token.token_id());
  for (Json& call : ToolDeltasJson(delta.tools, &choice.tool_ids)) {
    if (call.contains("id")) {
      call.erase("index");
      choice.tool_calls.push_back(std::move(call));
    } else {
      Json& arguments = choice.tool_calls.back()["function"]["arguments"];
      arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
}

void Generation::SendChunk(size_t index, Json delta, const Json& logprobs, const Json& finish_reason,
                           const Json& stop_reason, const Delta* tokens) {
  if (!streaming_) BeginStream();
  Json chunk = AnswerJson(head_, /*chunk=*/true);
  Json choice = {{"index", index}};
  choice[request_.chat ? "delta" : "text"] = std::move(delta);
  choice["logprobs"] = logprobs;
  choice["finish_reason"] = finish_reason;
  if (!finish_reason.is_null()) choice["stop_reason"] = stop_reason;
  if (head_.token_ids && tokens != nullptr) {
    choice["token_ids"] = Json::array();
    for (const v1::TokenEvent& token : tokens->tokens) choice["token_ids"].push_back(token.token_id());
  }
  chunk["choices"].push_back(std::move(choice));
  if (request_.continuous_usage) {
    chunk["usage"] = UsageJson(UsageSoFar());
  } else if (request_.include_usage) {
    chunk["usage"] = nullptr;
  }
  SendEvent(chunk);
}

// One event, one chunk of HTTP: some clients take what one read brings for one event.
void Generation::SendEvent(const Json& json) { exchange_->Write(absl::StrCat("data: ", Dump(json), "\n\n")); }

void Generation::BeginStream() {
  streaming_ = true;
  options_.on_status(200);
  rpc::HttpResponse head;
  head.headers = options_.headers;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers["Cache-Control"] = "no-cache";
  head.headers["X-Accel-Buffering"] = "no";
  exchange_->Begin(std::move(head));
}

void Generation::Fail(const absl::Status& status) {
  if (streaming_) {
    exchange_->Write(absl::StrCat("data: ", StreamError(status, request_.constraint_field), "\n\n"));
    exchange_->Write("data: [DONE]\n\n");
    return exchange_->End();
  }
  rpc::HttpResponse response = ErrorResponse(status, request_.constraint_field);
  response.headers.insert(options_.headers.begin(), options_.headers.end());
  options_.on_status(response.status);
  exchange_->Respond(std::move(response));
}

void Generation::Complete() {
  if (!request_.stream) {
    options_.on_status(200);
    return exchange_->Respond(WholeAnswer());
  }
  if (!streaming_) BeginStream();
  if (request_.include_usage) {
    Json chunk = AnswerJson(head_, /*chunk=*/true);
    chunk["usage"] = UsageJson(UsageSoFar());
    SendEvent(chunk);
  }
  exchange_->Write("data: [DONE]\n\n");
  exchange_->End();
}

Json Generation::ChoiceJson(size_t index) {
  Choice& choice = choices_[index];
  Json out = {{"index", index}};
  if (request_.chat) {
    const bool calls = !choice.tool_calls.empty();
    out["message"] = {{"role", "assistant"},
                      {"content", calls && choice.text.empty() ? Json(nullptr) : Json(choice.text)},
                      {"refusal", nullptr}};
    if (calls) out["message"]["tool_calls"] = std::move(choice.tool_calls);
  } else {
    out["text"] = request_.echo ? absl::StrCat(EchoOf(index / request_.n), choice.text) : choice.text;
  }
  out["logprobs"] = std::move(choice.all_logprobs);
  out["finish_reason"] = choice.finish_reason;
  out["stop_reason"] = choice.stop_reason;
  if (head_.token_ids) out["token_ids"] = std::move(choice.token_ids);
  return out;
}

rpc::HttpResponse Generation::WholeAnswer() {
  Json answer = AnswerJson(head_, /*chunk=*/false);
  for (size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(ChoiceJson(i));
  answer["usage"] = UsageJson(UsageSoFar());
  rpc::HttpResponse response;
  response.headers = options_.headers;
  response.body = Dump(answer);
  return response;
}

v1::Usage Generation::UsageSoFar() const {
  v1::Usage sum;
  for (const v1::Usage& usage : usage_) {
    sum.set_prompt_tokens(sum.prompt_tokens() + usage.prompt_tokens());
    sum.set_cached_tokens(sum.cached_tokens() + usage.cached_tokens());
    sum.set_completion_tokens(sum.completion_tokens() + usage.completion_tokens());
  }
  return sum;
}

std::string Generation::EchoOf(size_t prompt) const {
  const v1::GenerateRequest& request = request_.prompts[prompt];
  if (!request.has_token_ids()) return request.prompt();
  const auto& ids = request.token_ids().ids();
  return intake_->text().Detokenize({ids.begin(), ids.end()}).value_or("");
}

}  // namespace baton::router::http
