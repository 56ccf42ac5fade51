#include "common/validate_request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace baton {
namespace {

// What a person typed may be long or hostile; quote a short printable part of it.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += c >= 0x20 && c < 0x7f && c != '"' ? c : '?';
  return out + (text.size() > 40 ? "...\"" : "\"");
}

absl::Status CheckUtf8(absl::string_view field, absl::string_view text) {
  const int64_t offset = FirstInvalidUtf8(text);
  if (offset < 0) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("not valid UTF-8 at byte ", offset, "; send UTF-8 text or token_ids"));
}

struct FloatRange {
  const char* name;
  bool present;
  float value;
  float min;
  float max;
  bool open_min;
};

absl::Status CheckFloat(const FloatRange& r) {
  if (!r.present) return absl::OkStatus();
  // NaN fails both comparisons, so the condition is written as what must hold.
  if (std::isfinite(r.value) && (r.open_min ? r.value > r.min : r.value >= r.min) && r.value <= r.max) {
    return absl::OkStatus();
  }
  return InvalidField(absl::StrCat("sampling.", r.name),
                      absl::StrCat(r.value, " is not in ", r.open_min ? "(" : "[", r.min, ", ", r.max, "]"));
}

absl::Status CheckInt(const char* name, bool present, int64_t value, int64_t min, int64_t max) {
  if (!present || (value >= min && value <= max)) return absl::OkStatus();
  return InvalidField(absl::StrCat("sampling.", name), absl::StrCat(value, " is not in [", min, ", ", max, "]"));
}

absl::Status CheckFloats(const v1::SamplingParams& s) {
  const FloatRange ranges[] = {
      {"temperature", s.has_temperature(), s.temperature(), 0, 100, false},
      {"top_p", s.has_top_p(), s.top_p(), 0, 1, true},
      {"min_p", s.has_min_p(), s.min_p(), 0, 1, false},
      {"repetition_penalty", s.has_repetition_penalty(), s.repetition_penalty(), 0, 100, true},
      {"presence_penalty", s.has_presence_penalty(), s.presence_penalty(), -2, 2, false},
      {"frequency_penalty", s.has_frequency_penalty(), s.frequency_penalty(), -2, 2, false},
  };
  for (const FloatRange& range : ranges) {
    if (absl::Status status = CheckFloat(range); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckInts(const v1::SamplingParams& s) {
  constexpr int64_t kMaxInt = INT32_MAX;
  for (const absl::Status& status : {
           CheckInt("top_k", s.has_top_k(), s.top_k(), -1, kMaxInt),
           CheckInt("max_tokens", s.has_max_tokens(), s.max_tokens(), 1, kMaxInt),
           CheckInt("min_tokens", s.has_min_tokens(), s.min_tokens(), 0, kMaxInt),
           CheckInt("logprobs", s.has_logprobs(), s.logprobs(), 0, kMaxLogprobs),
           CheckInt("n", s.has_n(), s.n(), 1, kMaxChoices),
       }) {
    if (!status.ok()) return status;
  }
  if (s.has_min_tokens() && s.has_max_tokens() && s.min_tokens() > s.max_tokens()) {
    return InvalidField("sampling.min_tokens",
                        absl::StrCat(s.min_tokens(), " is more than max_tokens, which is ", s.max_tokens()));
  }
  return absl::OkStatus();
}

absl::Status CheckStops(const v1::SamplingParams& s) {
  if (s.stop_size() > kMaxStops) {
    return InvalidField("sampling.stop", absl::StrCat(s.stop_size(), " strings; at most ", kMaxStops));
  }
  for (int i = 0; i < s.stop_size(); ++i) {
    const std::string field = absl::StrCat("sampling.stop[", i, "]");
    if (s.stop(i).empty()) return InvalidField(field, "is empty; an empty string would stop everything");
    if (s.stop(i).size() > kMaxStopBytes) {
      return InvalidField(field, absl::StrCat(s.stop(i).size(), " bytes; at most ", kMaxStopBytes));
    }
    if (absl::Status status = CheckUtf8(field, s.stop(i)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(const v1::SamplingParams& s, const ModelLimits& limits) {
  if (s.logit_bias_size() > kMaxLogitBias) {
    return InvalidField("sampling.logit_bias", absl::StrCat(s.logit_bias_size(), " entries; at most ", kMaxLogitBias));
  }
  // The map has no order of its own; report the smallest bad id so that a message does not change from run to run.
  int64_t bad_id = INT64_MAX;
  for (const auto& [id, bias] : s.logit_bias()) {
    const bool ok = id >= 0 && id < limits.vocab_size && std::isfinite(bias) && bias >= -100 && bias <= 100;
    if (!ok) bad_id = std::min<int64_t>(bad_id, id);
  }
  if (bad_id == INT64_MAX) return absl::OkStatus();
  if (bad_id < 0 || bad_id >= limits.vocab_size) {
    return InvalidField("sampling.logit_bias",
                        absl::StrCat("token id ", bad_id, " is not in [0, ", limits.vocab_size, ")"));
  }
  return InvalidField(absl::StrCat("sampling.logit_bias[", bad_id, "]"),
                      absl::StrCat(s.logit_bias().at(static_cast<int32_t>(bad_id)), " is not in [-100, 100]"));
}

absl::Status CheckModel(const std::string& model, const ModelLimits& limits) {
  const auto& names = limits.model_names;
  if (model.empty() && names.size() <= 1) return absl::OkStatus();
  if (model.empty()) {
    return InvalidField("model", absl::StrCat("name one of the models served: ", absl::StrJoin(names, ", ")));
  }
  if (std::find(names.begin(), names.end(), model) != names.end()) return absl::OkStatus();
  return WithReason(absl::NotFoundError(absl::StrCat("model ", Quoted(model), " is not served; served: ",
                                                     names.empty() ? "none" : absl::StrJoin(names, ", "))),
                    "MODEL_NOT_FOUND");
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat(id.size(), " bytes; at most ", kMaxRequestIdBytes));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    if (id[i] < 0x20 || id[i] > 0x7e) {
      return InvalidField("request_id", absl::StrCat("byte ", i, " is not printable ASCII"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckToolCalls(const std::string& field, const v1::ChatMessage& message) {
  if (message.tool_calls_size() == 0) return absl::OkStatus();
  if (message.role() != "assistant") return InvalidField(field, "only an assistant's message has tool calls");
  if (message.tool_calls_size() > kMaxToolCalls) {
    return InvalidField(field, absl::StrCat(message.tool_calls_size(), " calls; at most ", kMaxToolCalls));
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    if (message.tool_calls(i).name().empty()) return InvalidField(absl::StrCat(field, "[", i, "].name"), "is empty");
  }
  return absl::OkStatus();
}

absl::Status CheckChat(const v1::Chat& chat) {
  if (chat.messages_size() == 0) return InvalidField("chat.messages", "is empty; send at least one message");
  if (chat.messages_size() > kMaxMessages) {
    return InvalidField("chat.messages", absl::StrCat(chat.messages_size(), " messages; at most ", kMaxMessages));
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    const std::string field = absl::StrCat("chat.messages[", i, "]");
    const std::string& role = message.role();
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return InvalidField(field + ".role", absl::StrCat(Quoted(role), " is not one of system, user, assistant, tool"));
    }
    if (absl::Status s = CheckUtf8(field + ".content", message.content()); !s.ok()) return s;
    if (absl::Status s = CheckToolCalls(field + ".tool_calls", message); !s.ok()) return s;
  }
  if (chat.tools().size() > kMaxToolsBytes) {
    return InvalidField("chat.tools", absl::StrCat(chat.tools().size(), " bytes; at most ", kMaxToolsBytes));
  }
  if (chat.template_arguments().size() > kMaxTemplateArgumentsBytes) {
    return InvalidField("chat.template_arguments", absl::StrCat(chat.template_arguments().size(), " bytes; at most ",
                                                                kMaxTemplateArgumentsBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const v1::GenerateRequest& request, const ModelLimits& limits) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      if (request.prompt().empty()) return InvalidField("prompt", "is empty; send at least one character");
      return CheckUtf8("prompt", request.prompt());
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) return InvalidField("token_ids.ids", "is empty; send at least one id");
      return ValidateTokenIds(request.token_ids().ids(), "token_ids.ids", limits);
    case v1::GenerateRequest::kChat:
      return CheckChat(request.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "none given; send prompt, token_ids or chat");
}

}  // namespace

int64_t FirstInvalidUtf8(absl::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const size_t n = text.size();
  size_t i = 0;
  while (i < n) {
    const unsigned char c = p[i];
    if (c < 0x80) {
      ++i;
      continue;
    }
    // Unicode 15, table 3-7: the second byte's range depends on the first.
    int extra = 0;
    unsigned char low = 0x80, high = 0xBF;
    if (c >= 0xC2 && c <= 0xDF) {
      extra = 1;
    } else if (c >= 0xE0 && c <= 0xEF) {
      extra = 2;
      if (c == 0xE0) low = 0xA0;
      if (c == 0xED) high = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
      extra = 3;
      if (c == 0xF0) low = 0x90;
      if (c == 0xF4) high = 0x8F;
    } else {
      return static_cast<int64_t>(i);
    }
    for (int k = 1; k <= extra; ++k) {
      if (i + k >= n || p[i + k] < low || p[i + k] > high) return static_cast<int64_t>(i);
      low = 0x80;
      high = 0xBF;
    }
    i += extra + 1;
  }
  return -1;
}

absl::Status ValidateTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, absl::string_view field,
                              const ModelLimits& limits) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limits.vocab_size) {
      return InvalidField(absl::StrCat(field, "[", i, "]"),
                          absl::StrCat("token id ", ids[i], " is not in [0, ", limits.vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSamplingParams(const v1::SamplingParams& s, const ModelLimits& limits) {
  if (absl::Status status = CheckFloats(s); !status.ok()) return status;
  if (absl::Status status = CheckInts(s); !status.ok()) return status;
  if (absl::Status status = CheckStops(s); !status.ok()) return status;
  if (absl::Status status = CheckLogitBias(s, limits); !status.ok()) return status;
  if (s.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidField("sampling.stop_token_ids",
                        absl::StrCat(s.stop_token_ids_size(), " ids; at most ", kMaxStopTokenIds));
  }
  return ValidateTokenIds(s.stop_token_ids(), "sampling.stop_token_ids", limits);
}

absl::Status ValidateGenerateRequest(const v1::GenerateRequest& request, const ModelLimits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  if (absl::Status s = CheckModel(request.model(), limits); !s.ok()) return s;
  if (absl::Status s = CheckInput(request, limits); !s.ok()) return s;
  if (request.tokens_per_message() > kMaxTokensPerMessage) {
    return InvalidField("tokens_per_message",
                        absl::StrCat(request.tokens_per_message(), "; at most ", kMaxTokensPerMessage));
  }
  return ValidateSamplingParams(request.sampling(), limits);
}

absl::Status ValidatePromptLength(int64_t num_prompt_tokens, const v1::SamplingParams& s, const ModelLimits& limits) {
  if (num_prompt_tokens <= 0) return InvalidField("prompt", "has no tokens; send at least one");
  if (num_prompt_tokens >= limits.max_context) {
    return WithReason(
        InvalidField("prompt", absl::StrCat(num_prompt_tokens, " tokens; with one token of output the limit is ",
                                            limits.max_context - 1, " (context of ", limits.max_context, ")")),
        "CONTEXT_LENGTH_EXCEEDED");
  }
  const int64_t room = limits.max_context - num_prompt_tokens;
  if (s.min_tokens() > room) {
    return InvalidField("sampling.min_tokens",
                        absl::StrCat(s.min_tokens(), " is more than the ", room, " tokens that a prompt of ",
                                     num_prompt_tokens, " leaves of the context of ", limits.max_context));
  }
  return absl::OkStatus();
}

v1::SamplingParams ResolveDefaults(const v1::SamplingParams& sampling, int64_t num_prompt_tokens, uint64_t seed,
                                   const ModelLimits& limits) {
  v1::SamplingParams s = sampling;
  if (!s.has_temperature()) s.set_temperature(1);
  if (!s.has_top_p()) s.set_top_p(1);
  s.set_top_k(std::max(s.top_k(), 0));
  if (!s.has_min_p()) s.set_min_p(0);
  if (!s.has_repetition_penalty()) s.set_repetition_penalty(1);
  if (!s.has_presence_penalty()) s.set_presence_penalty(0);
  if (!s.has_frequency_penalty()) s.set_frequency_penalty(0);
  if (!s.has_seed()) s.set_seed(seed);
  const auto room = static_cast<int32_t>(std::max<int64_t>(1, limits.max_context - num_prompt_tokens));
  s.set_max_tokens(s.has_max_tokens() ? std::min(s.max_tokens(), room) : room);
  if (!s.has_min_tokens()) s.set_min_tokens(0);
  if (!s.has_n()) s.set_n(1);
  return s;
}

}  // namespace baton
