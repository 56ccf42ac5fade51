#include "router/kserve/infer_request.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bounded_json.h"
#include "common/status.h"
#include "router/http/openai_request.h"

namespace baton::router::kserve {
namespace {

using Input = inference::ModelInferRequest::InferInputTensor;
using http::Json;

constexpr char kFinal[] = "triton_final_response";
constexpr const char* kInputs[] = {"text_input", "stream", "sampling_parameters", "exclude_input_in_output",
                                   "max_tokens"};

// One input's only element, by whichever way it came.
class Element {
 public:
  Element(const Input& input, const std::string* raw) : input_(input), raw_(raw) {}

  absl::StatusOr<std::string> Bytes() const {
    if (input_.datatype() != "BYTES") return Wrong("must be BYTES");
    if (raw_ == nullptr) {
      if (input_.contents().bytes_contents_size() != 1) return Wrong("must have one element");
      return input_.contents().bytes_contents(0);
    }
    uint32_t length = 0;
    if (raw_->size() < sizeof(length)) return Wrong("has no length before its bytes");
    std::memcpy(&length, raw_->data(), sizeof(length));
    if (raw_->size() - sizeof(length) != length) return Wrong("must have one element, as long as it says");
    return raw_->substr(sizeof(length));
  }
  absl::StatusOr<bool> Bool() const {
    if (input_.datatype() != "BOOL") return Wrong("must be BOOL");
    if (raw_ == nullptr) {
      if (input_.contents().bool_contents_size() != 1) return Wrong("must have one element");
      return input_.contents().bool_contents(0);
    }
    if (raw_->size() != 1) return Wrong("must have one element of one byte");
    return (*raw_)[0] != 0;
  }
  absl::StatusOr<int32_t> Int32() const {
    if (input_.datatype() != "INT32") return Wrong("must be INT32");
    if (raw_ == nullptr) {
      if (input_.contents().int_contents_size() != 1) return Wrong("must have one element");
      return input_.contents().int_contents(0);
    }
    int32_t value = 0;
    if (raw_->size() != sizeof(value)) return Wrong("must have one element of four bytes");
    std::memcpy(&value, raw_->data(), sizeof(value));
    return value;
  }

 private:
  absl::Status Wrong(absl::string_view what) const { return InvalidField(input_.name(), what); }

  const Input& input_;
  const std::string* const raw_;  // null: in `contents`
};

absl::StatusOr<std::map<std::string, Element>> Elements(const inference::ModelInferRequest& request) {
  const bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return InvalidField("raw_input_contents", absl::StrCat("has ", request.raw_input_contents_size(), " entries for ",
                                                           request.inputs_size(), " inputs"));
  }
  std::map<std::string, Element> elements;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    const std::string& name = input.name();
    if (std::find(std::begin(kInputs), std::end(kInputs), name) == std::end(kInputs)) {
      return InvalidField("inputs", absl::StrCat("has one that this model does not take; it takes ",
                                                 absl::StrJoin(kInputs, ", ")));
    }
    int64_t size = 1;
    for (const int64_t dim : input.shape()) size = dim == 1 ? size : 0;
    if (size != 1) return InvalidField(name, "must have the shape [1] or [1, 1]; send one request for each text");
    if (!elements.emplace(name, Element(input, raw ? &request.raw_input_contents(i) : nullptr)).second) {
      return InvalidField(name, "is given twice");
    }
  }
  return elements;
}

// "64" to 64, which vLLM's own clients send.
void UnquoteNumbers(Json* json) {
  for (auto& [name, value] : json->items()) {
    if (!value.is_string() || name == "stop") continue;
    const std::string text = value.get<std::string>();
    int64_t integer;
    double number;
    if (absl::SimpleAtoi(text, &integer)) {
      value = integer;
    } else if (absl::SimpleAtod(text, &number)) {
      value = number;
    } else if (text == "true" || text == "false") {
      value = text == "true";
    }
  }
}

absl::StatusOr<Json> SamplingJson(const std::string& text) {
  absl::StatusOr<Json> json = ParseBoundedJson(text);
  if (!json.ok()) return InvalidField("sampling_parameters", json.status().message());
  if (!json->is_object()) return InvalidField("sampling_parameters", "must be a JSON object");
  for (const char* name : {"prompt", "stream", "stream_options", "model", "echo"}) {
    if (json->contains(name)) return InvalidField("sampling_parameters", absl::StrCat("must not have ", name));
  }
  UnquoteNumbers(&*json);
  return json;
}

absl::Status ReadParameters(const inference::ModelInferRequest& request, InferRequest* out) {
  for (const auto& [name, value] : request.parameters()) {
    if (name == "triton_enable_empty_final_response") {
      out->empty_final = value.bool_param();
    } else if (name == "timeout") {  // microseconds; 0: none
      const int64_t us = value.has_uint64_param()
                             ? static_cast<int64_t>(std::min<uint64_t>(value.uint64_param(), INT64_MAX))
                             : value.int64_param();
      if (us < 0) return InvalidField("timeout", "is negative");
      if (us > 0) out->timeout = absl::Microseconds(us);
    } else if (name == "priority") {  // 0 is the model's default, 1 the first
      const uint64_t level = value.has_uint64_param() ? value.uint64_param() : static_cast<uint64_t>(value.int64_param());
      constexpr v1::Priority kLevels[] = {v1::PRIORITY_STANDARD, v1::PRIORITY_HIGH, v1::PRIORITY_STANDARD, v1::PRIORITY_BATCH};
      if (level >= std::size(kLevels)) return InvalidField("priority", "is 1 (high), 2 (standard) or 3 (batch); 0 is 2");
      if (level > 0) out->priority = kLevels[level];
    } else if (name == "sequence_id" || name == "sequence_start" || name == "sequence_end") {
      if (value.int64_param() != 0 || value.bool_param() || !value.string_param().empty()) {
        return InvalidField(name, "there are no stateful sequences here; leave it out");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InferRequest> ParseInferRequest(const inference::ModelInferRequest& request, bool may_stream) {
  absl::StatusOr<std::map<std::string, Element>> elements = Elements(request);
  if (!elements.ok()) return elements.status();
  InferRequest out;
  if (absl::Status status = ReadParameters(request, &out); !status.ok()) return status;
  Json body = Json::object();
  std::optional<bool> exclude;
  std::optional<int32_t> max_tokens;
  bool has_text = false;
  std::string prompt;
  for (const auto& [name, element] : *elements) {
    absl::Status status;
    const auto take = [&status](auto value, auto* into) {
      if (value.ok()) *into = *std::move(value);
      status = value.status();
    };
    if (name == "text_input") {
      has_text = true;
      take(element.Bytes(), &prompt);
    } else if (name == "stream") {
      take(element.Bool(), &out.stream);
    } else if (name == "exclude_input_in_output") {
      take(element.Bool(), &exclude);
    } else if (name == "max_tokens") {
      take(element.Int32(), &max_tokens);
    } else {
      absl::StatusOr<std::string> text = element.Bytes();
      take(text.ok() ? SamplingJson(*text) : absl::StatusOr<Json>(text.status()), &body);
    }
    if (!status.ok()) return status;
  }
  if (!has_text) return InvalidField("text_input", "is missing");
  if (out.stream && !may_stream) return InvalidField("stream", "needs ModelStreamInfer; this call has one answer");
  if (out.stream && exclude == false) {
    return InvalidField("exclude_input_in_output", "must not be false in a stream; leave it out");
  }
  out.echo = !out.stream && !exclude.value_or(false);
  if (max_tokens.has_value()) body["max_tokens"] = *max_tokens;
  body["prompt"] = "";
  absl::StatusOr<http::OpenAiRequest> parsed = http::ParseCompletionRequest(body);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->ignored.empty()) {
    const std::string& name = parsed->ignored[0];
    return InvalidField("sampling_parameters", absl::StrCat("has a name that means nothing here",
                                                            name.size() > 64 ? "" : absl::StrCat(": ", name)));
  }
  out.generate = std::move(parsed->prompts[0]);
  if (out.priority.has_value()) out.generate.set_priority(*out.priority);
  out.generate.set_model(request.model_name());
  out.generate.set_prompt(std::move(prompt));
  return out;
}

inference::ModelInferResponse MakeInferResponse(absl::string_view model, absl::string_view id, bool final) {
  inference::ModelInferResponse response;
  response.set_model_name(std::string(model));
  response.set_model_version("1");
  response.set_id(std::string(id));
  (*response.mutable_parameters())[kFinal].set_bool_param(final);
  return response;
}

void AddTexts(std::span<const std::string> texts, inference::ModelInferResponse* response) {
  auto* output = response->add_outputs();
  output->set_name("text_output");
  output->set_datatype("BYTES");
  output->add_shape(static_cast<int64_t>(texts.size()));
  std::string raw;
  for (const std::string& text : texts) {
    const auto length = static_cast<uint32_t>(text.size());
    raw.append(reinterpret_cast<const char*>(&length), sizeof(length));
    raw += text;
  }
  response->add_raw_output_contents(std::move(raw));
}

}  // namespace baton::router::kserve
