// The printable alphabet that byte-level BPE vocabularies write bytes in (GPT-2): a printable Latin-1 byte is the code
// point of the same number, the others are U+0100 and up in order.
#ifndef BATON_MODEL_TOKENIZER_BYTE_LEVEL_H_
#define BATON_MODEL_TOKENIZER_BYTE_LEVEL_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::model {

class ByteLevelAlphabet {
 public:
  static const ByteLevelAlphabet& Get();

  const std::string& ForByte(uint8_t byte) const { return text_[byte]; }
  // Appends the bytes that `text` spells; false (and nothing appended) if a code point is not of the alphabet.
  bool Decode(absl::string_view text, std::string* out) const;

 private:
  ByteLevelAlphabet();
  std::array<std::string, 256> text_;
  std::array<int16_t, 0x144> byte_;  // by code point; -1: not of the alphabet
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_BYTE_LEVEL_H_
