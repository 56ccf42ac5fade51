// The JSON of answers, as OpenAI's clients expect it.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_HTTP_ANSWER_JSON_H_
#define BATON_ROUTER_HTTP_ANSWER_JSON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/inference.pb.h"
#include "router/choice_text.h"
#include "router/http/json_fields.h"
#include "router/http/tool_calls.h"

namespace baton::router::http {

// What one event adds to a choice.
struct Delta {
  std::string content;
  std::vector<ToolDelta> tools;
  std::vector<v1::TokenEvent> tokens;  // for logprobs and token ids
};

// The fields that all parts of an answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
  bool logprobs = false;
  bool token_ids = false;
};

// Tokens and their logarithms so far, of one choice; grows piece by piece.
class LogprobsJson {
 public:
  explicit LogprobsJson(bool chat) : chat_(chat) {}
  // Of these tokens alone.
  Json Next(const std::vector<v1::TokenEvent>& tokens, const TextMaker& text);

 private:
  const bool chat_;
  int64_t offset_ = 0;  // in code points of the tokens' text
};
// Appends `more` to `all`, which is null at first.
void AppendLogprobs(Json* all, const Json& more);

// The text of a token for people: "bytes:\xe2\x82" when it is not whole code points.
std::string TokenName(const std::string& bytes);

Json UsageJson(const v1::Usage& usage);

// {"id","object","created","model","system_fingerprint","choices":[]}
Json AnswerJson(const AnswerHead& head, bool chunk);

// "stop", "length" or "tool_calls"; and vLLM's stop_reason: a string, an id of the request's stop_token_ids, or null.
std::string FinishReasonName(const v1::ChoiceFinished& finished, bool has_tool_calls);
Json StopReasonJson(const v1::ChoiceFinished& finished, const v1::SamplingParams& sampling);

Json ToolDeltasJson(const std::vector<ToolDelta>& deltas, std::vector<std::string>* ids);

std::string Dump(const Json& json);

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_ANSWER_JSON_H_
