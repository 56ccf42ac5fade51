#include "router/model_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "model/config.h"
#include "model/fingerprint.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/text_stream.h"

namespace baton::router {
namespace {

constexpr uint32_t kDefaultMaxContext = 8192;

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
        absl::FailedPreconditionError("this model has no chat template; send prompt instead of chat");
    return text;
  }
  absl::StatusOr<model::ChatTemplate> parsed = model::ChatTemplate::Parse(*source);
  if (parsed.ok()) {
    text->chat_template_ = *std::move(parsed);
  } else {
    text->template_error_ = absl::FailedPreconditionError(absl::StrCat(
        "this model's chat template cannot be used (", parsed.status().message(), "); send prompt instead of chat"));
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> ModelText::Encode(absl::string_view text, bool add_special,
                                                       absl::string_view field) const {
  // A text that is too long whatever its tokens are is not worth tokenizing, which would hold up this thread.
  const size_t least_tokens = text.size() / longest_token_bytes_;
  if (least_tokens > static_cast<size_t>(limits_.max_context)) {
    return InvalidField(field, absl::StrCat(text.size(), " bytes are at least ", least_tokens,
                                            " tokens; the context holds ", limits_.max_context));
  }
  model::EncodeOptions options;
  options.add_special = add_special;
  return tokenizer_->Encode(text, options);
}

absl::StatusOr<std::vector<int32_t>> ModelText::TokenizeText(absl::string_view text, bool add_special) const {
  return Encode(text, add_special, "prompt");
}

absl::StatusOr<std::vector<int32_t>> ModelText::TokenizeChat(const v1::Chat& chat) const {
  if (!chat_template_.has_value()) return template_error_;
  model::ChatTemplateInput input;
  for (const v1::ChatMessage& message : chat.messages()) {
    input.messages.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  input.bos_token = std::string(tokenizer_->TokenText(tokenizer_->bos_id()));
  input.eos_token = std::string(tokenizer_->TokenText(tokenizer_->eos_id()));
  input.now = absl::Now();
  const absl::StatusOr<std::string> rendered = chat_template_->Render(input);
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
