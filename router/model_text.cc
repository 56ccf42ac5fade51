#include "router/model_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "common/status.h"
#include "model/config.h"
#include "model/fingerprint.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/text_stream.h"
#include "router/tools_as_text.h"

namespace baton::router {
namespace {

constexpr uint32_t kDefaultMaxContext = 8192;
constexpr char kNoChatTemplate[] = "NO_CHAT_TEMPLATE";

class StreamText final : public ChoiceText {
 public:
  StreamText(const model::Tokenizer* tokenizer, std::shared_ptr<const model::StopStrings> stops,
             const model::TextStreamOptions& options)
      : stream_(tokenizer, std::move(stops), options), include_stop_(options.include_stop_str) {}

  TextPiece Push(int32_t token_id) override {
    // The only error is an id outside the vocabulary (a padded embedding may have such rows): it makes no text.
    absl::StatusOr<model::TextStream::Output> output = stream_.Append(token_id);
    return output.ok() ? Piece(*std::move(output)) : TextPiece{};
  }
  TextPiece PushStop(int32_t token_id) override { return include_stop_ ? Push(token_id) : TextPiece{}; }
  TextPiece Flush() override { return Piece(stream_.Finish()); }

 private:
  static TextPiece Piece(model::TextStream::Output output) {
    TextPiece piece;
    piece.text = std::move(output.text);
    piece.stop_string = std::move(output.stop_string);
    return piece;
  }

  model::TextStream stream_;
  const bool include_stop_;
};

using Json = nlohmann::ordered_json;

// JSON within a field.
absl::StatusOr<Json> ParsePart(absl::string_view text, absl::string_view field, Json::value_t type) {
  absl::StatusOr<Json> json = ParseBoundedJson(text);
  if (!json.ok()) return InvalidField(field, json.status().message());
  if (json->type() == type) return json;
  return InvalidField(field, type == Json::value_t::array ? "must be a JSON array" : "must be a JSON object");
}

// As chat templates know messages: with a tool call's arguments as an object.
absl::StatusOr<Json> MessageJson(const v1::ChatMessage& message, const std::string& field) {
  Json json = {{"role", message.role()}, {"content", message.content()}};
  if (!message.name().empty()) json["name"] = message.name();
  if (!message.tool_call_id().empty()) json["tool_call_id"] = message.tool_call_id();
  if (message.tool_calls_size() == 0) return json;
  if (message.content().empty()) json["content"] = nullptr;
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    const v1::ToolCall& call = message.tool_calls(i);
    absl::StatusOr<Json> arguments = ParsePart(call.arguments().empty() ? "{}" : call.arguments(),
                                               absl::StrCat(field, ".tool_calls[", i, "].function.arguments"),
                                               Json::value_t::object);
    if (!arguments.ok()) return arguments.status();
    json["tool_calls"].push_back({{"id", call.id()},
                                  {"type", "function"},
                                  {"function", {{"name", call.name()}, {"arguments", *std::move(arguments)}}}});
  }
  return json;
}

// Whether there was a message without content.
bool EmptyForNull(model::ChatTemplateInput* input) {
  bool found = false;
  for (Json& message : input->messages) {
    if (!message["content"].is_null()) continue;
    message["content"] = "";
    found = true;
  }
  return found;
}

std::string ServedName(const v1::Config& config) {
  if (config.has_served_model_name()) return config.served_model_name();
  std::string name = config.model().substr(config.model().rfind('/') + 1);
  if (absl::EndsWith(name, ".gguf")) name.resize(name.size() - 5);
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelText>> ModelText::Load(const v1::Config& config) {
  if (!config.has_model() || config.model().empty()) {
    return absl::InvalidArgumentError("model is not set; name a GGUF file, such as --model=model.gguf");
  }
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(config.model());
  if (!file.ok()) return file.status();
  absl::StatusOr<model::ModelConfig> model_config = model::ReadConfig(*file);
  if (!model_config.ok()) return model_config.status();
  absl::StatusOr<std::unique_ptr<const model::Tokenizer>> tokenizer = model::LoadTokenizer(*file);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<std::string> fingerprint = model::TokenizerFingerprint(*file);
  if (!fingerprint.ok()) return fingerprint.status();

  std::unique_ptr<ModelText> text(new ModelText());
  text->tokenizer_ = *std::move(tokenizer);
  text->tokenizer_fingerprint_ = *std::move(fingerprint);
  text->architecture_ = model_config->architecture;
  text->limits_.vocab_size = std::min(model_config->vocab_size, text->tokenizer_->vocab_size());
  const uint32_t limit = config.has_max_context() ? config.max_context() : kDefaultMaxContext;
  text->limits_.max_context = std::min(static_cast<int>(limit), model_config->context_length);
  text->limits_.model_names = {ServedName(config)};
  for (int32_t id = 0; id < text->tokenizer_->vocab_size(); ++id) {
    text->longest_token_bytes_ = std::max(text->longest_token_bytes_, text->TokenBytes(id).size());
  }
  const absl::StatusOr<absl::string_view> source = file->GetString("tokenizer.chat_template");
  if (!source.ok()) {
    text->template_error_ =
        WithReason(absl::FailedPreconditionError("this model has no chat template; send prompt instead of chat"),
                   kNoChatTemplate);
    return text;
  }
  absl::StatusOr<model::ChatTemplate> parsed = model::ChatTemplate::Parse(*source);
  if (parsed.ok()) {
    text->chat_template_ = *std::move(parsed);
    text->chat_template_source_ = std::string(*source);
  } else {
    text->template_error_ = WithReason(absl::FailedPreconditionError(absl::StrCat(
        "this model's chat template cannot be used (", parsed.status().message(), "); send prompt instead of chat")),
                                       kNoChatTemplate);
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> ModelText::Encode(absl::string_view text, bool add_special,
                                                       absl::string_view field) const {
  // A text that is too long whatever its tokens are is not worth tokenizing, which would hold up this thread.
  const size_t least_tokens = text.size() / longest_token_bytes_;
  if (least_tokens > static_cast<size_t>(limits_.max_context)) {
    return WithReason(InvalidField(field, absl::StrCat(text.size(), " bytes are at least ", least_tokens,
                                                       " tokens; the context holds ", limits_.max_context)),
                      "CONTEXT_LENGTH_EXCEEDED");
  }
  model::EncodeOptions options;
  options.add_special = add_special;
  return tokenizer_->Encode(text, options);
}

absl::StatusOr<std::vector<int32_t>> ModelText::TokenizeText(absl::string_view text, bool add_special) const {
  return Encode(text, add_special, "prompt");
}

absl::StatusOr<model::ChatTemplateInput> ModelText::TemplateInput(const v1::Chat& chat) const {
  model::ChatTemplateInput input;
  for (int i = 0; i < chat.messages_size(); ++i) {
    absl::StatusOr<Json> message = MessageJson(chat.messages(i), absl::StrCat("chat.messages[", i, "]"));
    if (!message.ok()) return message.status();
    input.messages.push_back(*std::move(message));
  }
  if (!chat.tools().empty()) {
    absl::StatusOr<Json> tools = ParsePart(chat.tools(), "chat.tools", Json::value_t::array);
    if (!tools.ok()) return tools.status();
    if (!tools->empty()) {
      // A template that does not look at them would drop them without a word.
      if (absl::StrContains(chat_template_source_, "tools")) {
        input.tools = *std::move(tools);
      } else {
        TellOfTools(*tools, &input.messages);
      }
    }
  }
  if (!chat.template_arguments().empty()) {
    absl::StatusOr<Json> extra = ParsePart(chat.template_arguments(), "chat.template_arguments", Json::value_t::object);
    if (!extra.ok()) return extra.status();
    input.extra = *std::move(extra);
  }
  input.add_generation_prompt = !chat.omit_generation_prompt();
  input.bos_token = std::string(tokenizer_->TokenText(tokenizer_->bos_id()));
  input.eos_token = std::string(tokenizer_->TokenText(tokenizer_->eos_id()));
  input.now = absl::Now();
  return input;
}

absl::StatusOr<std::vector<int32_t>> ModelText::TokenizeChat(const v1::Chat& chat) const {
  if (!chat_template_.has_value()) return template_error_;
  absl::StatusOr<model::ChatTemplateInput> input = TemplateInput(chat);
  if (!input.ok()) return input.status();
  absl::StatusOr<std::string> rendered = chat_template_->Render(*input);
  // Clients send no content beside tool calls. Some templates ask whether it is none, others add it to a text.
  if (!rendered.ok() && !absl::IsResourceExhausted(rendered.status()) && EmptyForNull(&*input)) {
    rendered = chat_template_->Render(*input);
  }
  // Out of its budget is the messages' fault, not a lack of room that passes.
  if (absl::IsResourceExhausted(rendered.status())) return InvalidField("chat.messages", rendered.status().message());
  if (!rendered.ok()) return rendered.status();
  return Encode(*rendered, /*add_special=*/false, "chat.messages");
}

absl::StatusOr<std::vector<int32_t>> ModelText::PromptTokens(const v1::GenerateRequest& request) const {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return Encode(request.prompt(), /*add_special=*/true, "prompt");
    case v1::GenerateRequest::kTokenIds:
      return std::vector<int32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
    case v1::GenerateRequest::kChat:
      return TokenizeChat(request.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("input: none given; send prompt, token_ids or chat");
}

absl::StatusOr<std::string> ModelText::Detokenize(const std::vector<int32_t>& token_ids) const {
  return tokenizer_->Decode(token_ids);
}

std::unique_ptr<ChoiceText> ModelText::NewChoice(const v1::SamplingParams& sampling) const {
  std::shared_ptr<const model::StopStrings> stops;
  if (sampling.stop_size() > 0) {
    // Validated before; what could still fail here has no text to match.
    auto created = model::StopStrings::Create({sampling.stop().begin(), sampling.stop().end()});
    if (created.ok()) stops = *std::move(created);
  }
  model::TextStreamOptions options;
  options.include_stop_str = sampling.include_stop_str_in_output();
  options.min_tokens = sampling.min_tokens();
  return std::make_unique<StreamText>(tokenizer_.get(), std::move(stops), options);
}

std::string ModelText::TokenBytes(int32_t token_id) const {
  const absl::StatusOr<absl::string_view> bytes = tokenizer_->TokenBytes(token_id);
  return bytes.ok() ? std::string(*bytes) : std::string();
}

}  // namespace baton::router
