#include "router/http/answer_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/ids.h"
#include "common/validate_request.h"

namespace baton::router::http {
namespace {

// JSON has no infinity; this is what OpenAI's API says instead.
double Finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

int64_t CodePoints(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Json BytesJson(const std::string& bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json ChatEntry(const std::string& bytes, float logprob) {
  return {{"token", TokenName(bytes)}, {"logprob", Finite(logprob)}, {"bytes", BytesJson(bytes)}};
}

}  // namespace

std::string TokenName(const std::string& bytes) {
  if (FirstInvalidUtf8(bytes) < 0) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
  return out;
}

Json LogprobsJson::Next(const std::vector<v1::TokenEvent>& tokens, const TextMaker& text) {
  Json out = chat_ ? Json{{"content", Json::array()}}
                   : Json{{"tokens", Json::array()},
                          {"token_logprobs", Json::array()},
                          {"top_logprobs", Json::array()},
                          {"text_offset", Json::array()}};
  for (const v1::TokenEvent& token : tokens) {
    const std::string bytes = text.TokenBytes(token.token_id());
    if (chat_) {
      Json entry = ChatEntry(bytes, token.logprob());
      entry["top_logprobs"] = Json::array();
      for (const v1::TopLogprob& top : token.top_logprobs()) {
        entry["top_logprobs"].push_back(ChatEntry(top.token(), top.logprob()));
      }
      out["content"].push_back(std::move(entry));
      continue;
    }
    const std::string name = TokenName(bytes);
    Json top_logprobs = Json::object();
    for (const v1::TopLogprob& top : token.top_logprobs()) top_logprobs[TokenName(top.token())] = Finite(top.logprob());
    top_logprobs[name] = Finite(token.logprob());  // the sampled one is always among them
    out["tokens"].push_back(name);
    out["token_logprobs"].push_back(Finite(token.logprob()));
    out["top_logprobs"].push_back(std::move(top_logprobs));
    out["text_offset"].push_back(offset_);
    offset_ += CodePoints(name);
  }
  return out;
}

void AppendLogprobs(Json* all, const Json& more) {
  if (all->is_null()) {
    *all = more;
    return;
  }
  for (auto it = more.begin(); it != more.end(); ++it) {
    for (const Json& entry : it.value()) (*all)[it.key()].push_back(entry);
  }
}

Json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

Json AnswerJson(const AnswerHead& head, bool chunk) {
  const char* object = !head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint},
          {"choices", Json::array()}};
}

std::string FinishReasonName(const v1::ChoiceFinished& finished, bool has_tool_calls) {
  if (finished.reason() == v1::FINISH_REASON_LENGTH) return "length";
  return has_tool_calls ? "tool_calls" : "stop";
}

Json StopReasonJson(const v1::ChoiceFinished& finished, const v1::SamplingParams& sampling) {
  if (finished.has_stop_string()) return finished.stop_string();
  const auto& ids = sampling.stop_token_ids();
  if (finished.has_stop_token_id() && std::find(ids.begin(), ids.end(), finished.stop_token_id()) != ids.end()) {
    return finished.stop_token_id();
  }
  return nullptr;
}

Json ToolDeltasJson(const std::vector<ToolDelta>& deltas, std::vector<std::string>* ids) {
  Json out = Json::array();
  for (const ToolDelta& delta : deltas) {
    Json entry = {{"index", delta.index}};
    if (!delta.name.empty()) {
      ids->push_back(absl::StrCat("call_", absl::Hex(RandomU64(), absl::kZeroPad16)));
      entry["id"] = ids->back();
      entry["type"] = "function";
      entry["function"] = {{"name", delta.name}, {"arguments", delta.arguments}};
    } else {
      entry["function"] = {{"arguments", delta.arguments}};
    }
    out.push_back(std::move(entry));
  }
  return out;
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace baton::router::http
