// The vocabulary of a GGUF file (metadata keys tokenizer.ggml.*).
#ifndef BATON_MODEL_TOKENIZER_GGUF_TOKENIZER_H_
#define BATON_MODEL_TOKENIZER_GGUF_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/tokenizer/tokenizer.h"

namespace baton::model {

// A copy: the file may be closed afterwards. InvalidArgument for a missing key, a wrong type or an id that does not
// fit; what the parts must have in common is checked by Tokenizer::Create.
absl::StatusOr<TokenizerData> LoadTokenizerData(const GgufFile& file);

// LoadTokenizerData, then Tokenizer::Create.
absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const GgufFile& file);

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_GGUF_TOKENIZER_H_
