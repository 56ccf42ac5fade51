#include "common/vllm/engine_request.h"

#include <climits>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "common/ids.h"
#include "common/status.h"

namespace baton::vllm {
namespace {

constexpr size_t kMaxParamsBytes = 2u << 20;  // a ticket of 1 MiB in base64, and some

// Above what int32 holds, the validator says what is wrong with it.
int32_t Clamp(uint32_t value) { return value > INT32_MAX ? INT32_MAX : static_cast<int32_t>(value); }

absl::Status ReadConstraint(const pb::SamplingParams& from, v1::SamplingParams* to) {
  switch (from.constraint_case()) {
    case pb::SamplingParams::kJsonSchema:
      to->mutable_constraint()->set_json_schema(from.json_schema());
      break;
    case pb::SamplingParams::kRegex:
      to->mutable_constraint()->set_regex(from.regex());
      break;
    case pb::SamplingParams::kJsonObject:
      if (from.json_object()) to->mutable_constraint()->set_json_object(true);
      break;
    case pb::SamplingParams::kChoice:
      *to->mutable_constraint()->mutable_choice()->mutable_texts() = from.choice().choices();
      break;
    case pb::SamplingParams::kGrammar:
      to->mutable_constraint()->set_grammar(from.grammar());
      break;
    case pb::SamplingParams::kStructuralTag:
      return InvalidField("sampling_params.structural_tag", "is not supported; use json_schema, regex or choice");
    case pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SamplingParams> ReadSampling(const pb::SamplingParams& from) {
  v1::SamplingParams to;
  if (from.has_temperature()) to.set_temperature(from.temperature());
  if (from.top_p() != 0) to.set_top_p(from.top_p());
  if (from.top_k() != 0) to.set_top_k(Clamp(from.top_k()));
  if (from.min_p() != 0) to.set_min_p(from.min_p());
  if (from.frequency_penalty() != 0) to.set_frequency_penalty(from.frequency_penalty());
  if (from.presence_penalty() != 0) to.set_presence_penalty(from.presence_penalty());
  if (from.repetition_penalty() != 0) to.set_repetition_penalty(from.repetition_penalty());
  if (from.has_max_tokens()) to.set_max_tokens(Clamp(from.max_tokens()));
  if (from.min_tokens() != 0) to.set_min_tokens(Clamp(from.min_tokens()));
  for (const uint32_t id : from.stop_token_ids()) to.add_stop_token_ids(Clamp(id));
  to.set_ignore_eos(from.ignore_eos());
  if (from.n() != 0) to.set_n(Clamp(from.n()));
  if (from.has_logprobs()) to.set_logprobs(from.logprobs());
  // As the HTTP door takes a negative one.
  if (from.has_seed()) to.set_seed(static_cast<uint64_t>(int64_t{from.seed()}));
  *to.mutable_logit_bias() = from.logit_bias();
  if (from.has_prompt_logprobs()) return InvalidField("sampling_params.prompt_logprobs", "is not supported");
  if (from.has_truncate_prompt_tokens()) return InvalidField("sampling_params.truncate_prompt_tokens", "is not supported");
  if (absl::Status s = ReadConstraint(from, &to); !s.ok()) return s;
  return to;
}

absl::Status BadParams(absl::string_view what) { return InvalidField("kv_transfer_params_json", what); }

absl::Status ReadParams(const std::string& text, EngineRequest* request) {
  if (text.size() > kMaxParamsBytes) return BadParams(absl::StrCat("has ", text.size(), " bytes, over 2 MiB"));
  const auto json = ParseBoundedJson(text);
  if (!json.ok()) return BadParams(json.status().message());
  if (!json->is_object()) return BadParams("is not an object");
  const auto hand_over = json->find("do_remote_decode");
  request->hand_over = hand_over != json->end() && hand_over->is_boolean() && hand_over->get<bool>();
  const auto own = json->find("baton");
  if (own == json->end()) return absl::OkStatus();  // another engine's notes
  std::string bytes;
  v1::EngineHandoff handoff;
  if (!own->is_string() || !absl::Base64Unescape(own->get<std::string>(), &bytes) || !handoff.ParseFromString(bytes) ||
      !handoff.has_ticket() || !handoff.has_first_tokens()) {
    return BadParams("holds a \"baton\" that no prefill worker made");
  }
  request->handoff = std::move(handoff);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EngineRequest> ParseEngineRequest(const pb::GenerateRequest& request, const ModelLimits& limits) {
  if (request.input_case() == pb::GenerateRequest::kText) {
    return InvalidField("text", "workers know token ids only; send tokenized, as gateways do");
  }
  if (!request.has_tokenized()) return InvalidField("tokenized", "is missing");
  if (request.has_mm_inputs() || request.extra_mm_inputs_size() > 0 || request.has_media_refs()) {
    return InvalidField("mm_inputs", "the model reads text only");
  }
  EngineRequest parsed;
  parsed.request_id = request.request_id();
  parsed.stream = request.stream();
  for (const uint32_t id : request.tokenized().input_ids()) parsed.prompt_token_ids.Add(Clamp(id));
  absl::StatusOr<v1::SamplingParams> sampling = ReadSampling(request.sampling_params());
  if (!sampling.ok()) return sampling.status();
  parsed.sampling = *std::move(sampling);
  // The same judgement as behind every other door.
  v1::GenerateRequest checked;
  checked.set_request_id(parsed.request_id);
  *checked.mutable_token_ids()->mutable_ids() = parsed.prompt_token_ids;
  *checked.mutable_sampling() = parsed.sampling;
  if (absl::Status s = ValidateGenerateRequest(checked, limits); !s.ok()) return s;
  if (absl::Status s = ValidatePromptLength(parsed.prompt_token_ids.size(), parsed.sampling, limits); !s.ok()) return s;
  if (parsed.request_id.empty()) parsed.request_id = NewRequestId();
  if (request.has_kv_transfer_params_json() && !request.kv_transfer_params_json().empty()) {
    if (absl::Status s = ReadParams(request.kv_transfer_params_json(), &parsed); !s.ok()) return s;
  }
  return parsed;
}

std::string HandoffJson(const v1::EngineHandoff& handoff) {
  return nlohmann::json{{"do_remote_decode", false},
                        {"do_remote_prefill", true},
                        {"baton", absl::Base64Escape(handoff.SerializeAsString())}}
      .dump();
}

}  // namespace baton::vllm
