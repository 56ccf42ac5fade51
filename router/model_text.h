// The text side of the served model: tokenizer, chat template, limits. Read from the model file without its weights.
#ifndef BATON_ROUTER_MODEL_TEXT_H_
#define BATON_ROUTER_MODEL_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/validate_request.h"
#include "model/template/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/config.pb.h"
#include "proto/inference.pb.h"
#include "router/choice_text.h"

namespace baton::router {

// Immutable after Load, so thread-safe.
class ModelText final : public TextMaker {
 public:
  // Errors name the setting or the file: INVALID_ARGUMENT without a model or with a damaged one, NOT_FOUND,
  // UNIMPLEMENTED for a kind of model Baton does not read. A chat template that does not parse is an error of chats
  // only.
  static absl::StatusOr<std::unique_ptr<ModelText>> Load(const v1::Config& config);

  const ModelLimits& limits() const { return limits_; }
  const std::string& model_name() const { return limits_.model_names[0]; }
  const std::string& architecture() const { return architecture_; }
  const std::string& tokenizer_fingerprint() const { return tokenizer_fingerprint_; }
  // Empty when the model has none that can be used.
  const std::string& chat_template_source() const { return chat_template_source_; }

  // INVALID_ARGUMENT: `text` cannot fit into max_context (found before tokenizing), is not UTF-8, the template refuses the
  // messages, or JSON within the chat is not what it should be. FAILED_PRECONDITION: the model has no usable chat template.
  absl::StatusOr<std::vector<int32_t>> TokenizeText(absl::string_view text, bool add_special) const;
  absl::StatusOr<std::vector<int32_t>> TokenizeChat(const v1::Chat& chat) const;
  absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::GenerateRequest& request) const;
  // Ids inside the vocabulary only.
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& token_ids) const;

  std::unique_ptr<ChoiceText> NewChoice(const v1::SamplingParams& sampling) const override;
  std::string TokenBytes(int32_t token_id) const override;

 private:
  ModelText() = default;
  absl::StatusOr<model::ChatTemplateInput> TemplateInput(const v1::Chat& chat) const;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special, absl::string_view field) const;

  ModelLimits limits_;
  std::string architecture_;
  std::string tokenizer_fingerprint_;
  std::unique_ptr<const model::Tokenizer> tokenizer_;
  size_t longest_token_bytes_ = 1;
  std::optional<model::ChatTemplate> chat_template_;
  std::string chat_template_source_;
  absl::Status template_error_;  // why chat_template_ is absent
};

}  // namespace baton::router

#endif  // BATON_ROUTER_MODEL_TEXT_H_
