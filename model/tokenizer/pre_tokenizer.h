// Splits text into the words that byte-level BPE merges within. Each scheme is data: a list of regular expressions,
// each of which splits the pieces left by the one before it into its matches and what lies between them.
#ifndef BATON_MODEL_TOKENIZER_PRE_TOKENIZER_H_
#define BATON_MODEL_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model {

// Immutable after Create, so any number of threads may call Split.
class PreTokenizer {
 public:
  // `name` is the GGUF key tokenizer.ggml.pre. Unimplemented for an unknown one; the message names the known ones.
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> Create(absl::string_view name);
  ~PreTokenizer();

  // The regular expressions of `name` in order, each splitting what the one before left; as Create.
  static absl::StatusOr<std::vector<std::string>> Patterns(absl::string_view name);

  // The pieces of `text` (valid UTF-8) in order; together they are all of it. They point into `text`.
  // ResourceExhausted if a pattern needs more backtracking than a text of this length can honestly need.
  absl::StatusOr<std::vector<absl::string_view>> Split(absl::string_view text) const;

  // A word that is a token as a whole is not merged from its letters (Llama 3).
  bool ignore_merges() const;
  // The text is brought to Unicode NFC first (Qwen 2).
  bool nfc() const;

 private:
  struct Impl;
  explicit PreTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_PRE_TOKENIZER_H_
