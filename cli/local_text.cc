#include "cli/local_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/gguf.h"
#include "model/tokenizer/gguf_tokenizer.h"

namespace baton::cli {

absl::StatusOr<std::unique_ptr<LocalText>> LocalText::Load(const std::string& path) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::unique_ptr<const model::Tokenizer>> tokenizer = model::LoadTokenizer(*file);
  if (!tokenizer.ok()) return tokenizer.status();
  std::unique_ptr<LocalText> text(new LocalText());
  text->tokenizer_ = *std::move(tokenizer);
  const absl::StatusOr<absl::string_view> source = file->GetString("tokenizer.chat_template");
  if (!source.ok()) {
    text->template_error_ = absl::FailedPreconditionError("This model has no chat template; leave --chat out.");
    return text;
  }
  absl::StatusOr<model::ChatTemplate> parsed = model::ChatTemplate::Parse(*source);
  if (parsed.ok()) {
    text->chat_template_ = *std::move(parsed);
  } else {
    text->template_error_ = absl::FailedPreconditionError(
        absl::StrCat("This model's chat template cannot be used (", parsed.status().message(), "); leave --chat out."));
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> LocalText::PromptTokens(const v1::GenerateRequest& request) const {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return tokenizer_->Encode(request.prompt());
    case v1::GenerateRequest::kTokenIds:
      return std::vector<int32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
    case v1::GenerateRequest::kChat:
      return ChatTokens(request.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("input: none given");
}

absl::StatusOr<std::vector<int32_t>> LocalText::ChatTokens(const v1::Chat& chat) const {
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
  model::EncodeOptions options;
  options.add_special = false;  // the template wrote its own
  return tokenizer_->Encode(*rendered, options);
}

absl::StatusOr<model::TextStream> LocalText::NewChoice(const v1::SamplingParams& sampling) const {
  std::shared_ptr<const model::StopStrings> stops;
  if (sampling.stop_size() > 0) {
    auto created = model::StopStrings::Create({sampling.stop().begin(), sampling.stop().end()});
    if (!created.ok()) return created.status();
    stops = *std::move(created);
  }
  model::TextStreamOptions options;
  options.include_stop_str = sampling.include_stop_str_in_output();
  options.min_tokens = sampling.min_tokens();
  return model::TextStream(tokenizer_.get(), std::move(stops), options);
}

}  // namespace baton::cli
