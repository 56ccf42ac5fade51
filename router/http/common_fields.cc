// The fields that chat and text completions share.
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/validate_request.h"
#include "router/http/openai_request.h"

namespace baton::router::http {
namespace {

void ReadStops(JsonFields* fields, v1::SamplingParams* sampling) {
  if (const Json* stop = fields->Find("stop"); stop != nullptr) {
    if (stop->is_string()) {
      sampling->add_stop(stop->get<std::string>());
    } else if (stop->is_array()) {
      for (const Json& one : *stop) {
        if (!one.is_string()) return fields->Fail("stop", "must be a string or a list of strings");
        if (sampling->stop_size() > kMaxStops) break;  // the validator refuses it
        sampling->add_stop(one.get<std::string>());
      }
    } else {
      fields->Fail("stop", "must be a string or a list of strings");
    }
  }
  if (const Json* ids = fields->Array("stop_token_ids"); ids != nullptr) {
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || id.get<int64_t>() != static_cast<int32_t>(id.get<int64_t>())) {
        return fields->Fail("stop_token_ids", "must be a list of token ids");
      }
      if (sampling->stop_token_ids_size() > kMaxStopTokenIds) break;
      sampling->add_stop_token_ids(id.get<int32_t>());
    }
  }
}

void ReadLogitBias(JsonFields* fields, v1::SamplingParams* sampling) {
  const Json* bias = fields->Object("logit_bias");
  if (bias == nullptr) return;
  for (auto it = bias->begin(); it != bias->end(); ++it) {
    int32_t id;
    if (!absl::SimpleAtoi(it.key(), &id) || !it.value().is_number()) {
      return fields->Fail("logit_bias", "must map token ids, written as strings, to numbers");
    }
    (*sampling->mutable_logit_bias())[id] = static_cast<float>(it.value().get<double>());
  }
}

void ReadSampling(JsonFields* fields, v1::SamplingParams* s) {
  if (const auto v = fields->Float("temperature")) s->set_temperature(*v);
  if (const auto v = fields->Float("top_p")) s->set_top_p(*v);
  if (const auto v = fields->Int32("top_k")) s->set_top_k(*v);
  if (const auto v = fields->Float("min_p")) s->set_min_p(*v);
  if (const auto v = fields->Float("repetition_penalty")) s->set_repetition_penalty(*v);
  if (const auto v = fields->Float("presence_penalty")) s->set_presence_penalty(*v);
  if (const auto v = fields->Float("frequency_penalty")) s->set_frequency_penalty(*v);
  if (const auto v = fields->Int("seed")) s->set_seed(static_cast<uint64_t>(*v));
  if (const auto v = fields->Int32("max_tokens")) s->set_max_tokens(*v);
  if (const auto v = fields->Int32("min_tokens")) s->set_min_tokens(*v);
  if (const auto v = fields->Int32("n")) s->set_n(*v);
  if (const auto v = fields->Bool("ignore_eos")) s->set_ignore_eos(*v);
  if (const auto v = fields->Bool("include_stop_str_in_output")) s->set_include_stop_str_in_output(*v);
  ReadStops(fields, s);
  ReadLogitBias(fields, s);
}

void ReadStream(JsonFields* fields, OpenAiRequest* request) {
  request->stream = fields->Bool("stream").value_or(false);
  const Json* options = fields->Object("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields->Fail("stream_options", "only allowed with stream: true");
  JsonFields inner(*options, "stream_options.");
  request->include_usage = inner.Bool("include_usage").value_or(false);
  request->continuous_usage = request->include_usage && inner.Bool("continuous_usage_stats").value_or(false);
  fields->Fail(inner.status());
}

// As vLLM's: lower is served earlier, 0 is the default.
v1::Priority ReadPriority(JsonFields* fields) {
  const int64_t value = fields->Int("priority").value_or(0);
  return value < 0 ? v1::PRIORITY_HIGH : value > 0 ? v1::PRIORITY_BATCH : v1::PRIORITY_STANDARD;
}

}  // namespace

void RefuseUnsupported(JsonFields* fields) {
  for (const char* name :
       {"prompt_logprobs", "truncate_prompt_tokens", "allowed_token_ids", "bad_words", "logits_processors",
        "prompt_embeds", "cache_salt", "chat_template", "audio", "functions", "function_call"}) {
    if (fields->Find(name) != nullptr) fields->Fail(name, "is not supported; leave it out");
  }
  for (const char* name : {"use_beam_search", "continue_final_message", "return_tokens_as_token_ids"}) {
    if (fields->Bool(name).value_or(false)) fields->Fail(name, "is not supported; leave it out");
  }
  if (!fields->Bool("skip_special_tokens").value_or(true)) {
    fields->Fail("skip_special_tokens", "special tokens make no text here; leave it out, or ask for return_token_ids");
  }
  // These change nothing of the answer.
  for (const char* name : {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                           "request_id", "spaces_between_special_tokens"}) {
    fields->Find(name);
  }
}

void ReadCommon(JsonFields* fields, OpenAiRequest* request, v1::GenerateRequest* prompt) {
  if (const auto model = fields->String("model")) prompt->set_model(*model);
  prompt->set_priority(ReadPriority(fields));
  ReadSampling(fields, prompt->mutable_sampling());
  ReadStream(fields, request);
  request->n = prompt->sampling().has_n() ? prompt->sampling().n() : 1;
  request->return_token_ids = fields->Bool("return_token_ids").value_or(false);
  request->constraint_field = ReadConstraint(fields, prompt->mutable_sampling());
  RefuseUnsupported(fields);
}

}  // namespace baton::router::http
