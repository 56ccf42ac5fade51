// UTF-8 (RFC 3629): validation with the place of the first error, and a decoder for bytes that arrive in pieces.
// Surrogates, overlong forms and values above U+10FFFF are invalid.
#ifndef BATON_MODEL_TOKENIZER_UTF8_H_
#define BATON_MODEL_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::model {

// Offset of the first byte that does not belong to a valid sequence (a cut sequence counts from its first byte), or
// nullopt if all of `text` is valid.
std::optional<size_t> FirstInvalidUtf8(absl::string_view text);

// Length of the sequence that starts with `lead`, a lead byte of valid UTF-8.
int Utf8SequenceLength(uint8_t lead);

// Passes valid text through and holds back the bytes of an unfinished code point. Each maximal run of bytes that starts
// like a code point but cannot become one is replaced by one U+FFFD as soon as that is known (Unicode 3.9, table 3-8).
// Not thread safe. Copyable: a copy continues from the same place.
class Utf8Stream {
 public:
  void Append(absl::string_view bytes, std::string* out);
  // The stream ends: an unfinished code point becomes U+FFFD. The stream is then as new.
  void Flush(std::string* out);

 private:
  void Start(uint8_t byte, std::string* out);

  char pending_[4] = {};
  uint8_t num_pending_ = 0;
  uint8_t num_needed_ = 0;   // continuation bytes still missing
  uint8_t next_min_ = 0x80;  // the range the next continuation byte must lie in
  uint8_t next_max_ = 0xBF;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_UTF8_H_
