// The text side of a model in this process: prompts to token ids, and token ids to text.
#ifndef BATON_CLI_LOCAL_TEXT_H_
#define BATON_CLI_LOCAL_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/template/chat_template.h"
#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/inference.pb.h"

namespace baton::cli {

// Immutable after Load.
class LocalText {
 public:
  // The loader's errors. A chat template that cannot be used is an error of chats only.
  static absl::StatusOr<std::unique_ptr<LocalText>> Load(const std::string& path);

  const model::Tokenizer& tokenizer() const { return *tokenizer_; }

  // FAILED_PRECONDITION for a chat without a usable template.
  absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::GenerateRequest& request) const;
  absl::StatusOr<model::TextStream> NewChoice(const v1::SamplingParams& sampling) const;

 private:
  absl::StatusOr<std::vector<int32_t>> ChatTokens(const v1::Chat& chat) const;

  std::unique_ptr<const model::Tokenizer> tokenizer_;
  std::optional<model::ChatTemplate> chat_template_;
  absl::Status template_error_;  // why chat_template_ is absent
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOCAL_TEXT_H_
