// The body of /v1/completions.
#include "absl/strings/str_cat.h"
#include "common/validate_request.h"
#include "router/http/openai_request.h"

namespace baton::router::http {
namespace {

constexpr const char* kPromptTypes =
    "must be a string, a list of strings, a list of token ids, or a list of such lists";

bool AddIds(const Json& list, v1::TokenIds* ids) {
  ids->mutable_ids()->Reserve(static_cast<int>(list.size()));
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() != static_cast<int32_t>(id.get<int64_t>())) return false;
    ids->add_ids(id.get<int32_t>());
  }
  return true;
}

void ReadPrompts(JsonFields* fields, const v1::GenerateRequest& common, OpenAiRequest* request) {
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) return fields->Fail("prompt", "is missing; it " + std::string(kPromptTypes));
  const auto add = [&]() -> v1::GenerateRequest* { return &request->prompts.emplace_back(common); };
  if (prompt->is_string()) return add()->set_prompt(prompt->get<std::string>());
  if (!prompt->is_array()) return fields->Fail("prompt", kPromptTypes);
  if (prompt->empty()) return fields->Fail("prompt", "is empty; send at least one");
  if (prompt->front().is_number()) {
    if (!AddIds(*prompt, add()->mutable_token_ids())) fields->Fail("prompt", kPromptTypes);
    return;
  }
  if (prompt->size() > kMaxPrompts) {
    return fields->Fail("prompt", absl::StrCat(prompt->size(), " prompts; at most ", kMaxPrompts));
  }
  for (const Json& one : *prompt) {
    if (one.is_string()) {
      add()->set_prompt(one.get<std::string>());
    } else if (!one.is_array() || !AddIds(one, add()->mutable_token_ids())) {
      return fields->Fail("prompt", kPromptTypes);
    }
  }
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(const Json& body) {
  OpenAiRequest request;
  v1::GenerateRequest common;
  JsonFields fields(body);
  ReadCommon(&fields, &request, &common);
  v1::SamplingParams* sampling = common.mutable_sampling();
  if (!sampling->has_max_tokens()) {
    sampling->set_max_tokens(std::max(kDefaultCompletionTokens, sampling->min_tokens()));
  }
  if (const auto logprobs = fields.Int32("logprobs")) {
    request.logprobs = true;
    sampling->set_logprobs(*logprobs);
  }
  request.echo = fields.Bool("echo").value_or(false);
  if (request.echo && request.logprobs)
    fields.Fail("echo", "with logprobs needs those of the prompt, which are not computed");
  if (const auto suffix = fields.String("suffix"); suffix.has_value() && !suffix->empty()) {
    fields.Fail("suffix", "is not supported; leave it out");
  }
  if (const auto best_of = fields.Int("best_of"); best_of.has_value() && *best_of != request.n) {
    fields.Fail("best_of", "is only supported equal to n; leave it out");
  }
  fields.Bool("add_special_tokens");
  ReadPrompts(&fields, common, &request);
  if (!fields.ok()) return fields.status();
  request.ignored = fields.Unread();
  return request;
}

}  // namespace baton::router::http
