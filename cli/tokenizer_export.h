// A model file's vocabulary as the folder that Hugging Face's libraries read: tokenizer.json, tokenizer_config.json and
// chat_template.jinja. For harnesses that want a tokenizer folder; ids are equal to the model's.
#ifndef BATON_CLI_TOKENIZER_EXPORT_H_
#define BATON_CLI_TOKENIZER_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/tokenizer.h"

namespace baton::cli {

struct TokenizerFolder {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string chat_template;  // "" for none
};

// Pure. UNIMPLEMENTED for a pre-tokenizer whose rules are not known here. `max_context` becomes model_max_length; 0:
// not known.
absl::StatusOr<TokenizerFolder> ExportTokenizer(const model::TokenizerData& data, absl::string_view chat_template,
                                                uint64_t max_context);

// Reads `gguf_path`, makes `dir` and writes the files. ALREADY_EXISTS when one is there and `force` is false; the
// loader's errors.
absl::Status ExportTokenizerFolder(const std::string& gguf_path, const std::string& dir, bool force);

}  // namespace baton::cli

#endif  // BATON_CLI_TOKENIZER_EXPORT_H_
