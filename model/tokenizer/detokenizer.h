// Token ids to text, one at a time; what comes out is always whole code points.
#ifndef BATON_MODEL_TOKENIZER_DETOKENIZER_H_
#define BATON_MODEL_TOKENIZER_DETOKENIZER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace baton::model {

struct DetokenizerOptions {
  bool skip_special = true;  // special tokens make no text
  // Drop one leading space: for a text decoded from its first token by a model with add_space_prefix. False for a
  // continuation, which an answer is.
  bool strip_space_prefix = false;
};

// Not thread safe. Copyable: a copy continues from the same place. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer, const DetokenizerOptions& options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Appends to `out` the text that is certain after this token. Bytes of an unfinished code point are held back; a
  // special token in between makes them U+FFFD. InvalidArgument for an id outside the vocabulary (nothing changes).
  absl::Status Append(int32_t token_id, std::string* out);
  // The end of the tokens: what was held back becomes U+FFFD.
  void Flush(std::string* out);

 private:
  const Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  Utf8Stream utf8_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_DETOKENIZER_H_
