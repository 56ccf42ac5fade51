#include "model/tokenizer/byte_level.h"

namespace baton::model {
namespace {

bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

}  // namespace

ByteLevelAlphabet::ByteLevelAlphabet() {
  byte_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = IsPrintableLatin1(byte) ? byte : next++;
    byte_[code_point] = static_cast<int16_t>(byte);
    if (code_point < 0x80) {
      text_[byte] = std::string(1, static_cast<char>(code_point));
    } else {
      text_[byte] = {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
    }
  }
}

const ByteLevelAlphabet& ByteLevelAlphabet::Get() {
  static const auto* const alphabet = new ByteLevelAlphabet;
  return *alphabet;
}

bool ByteLevelAlphabet::Decode(absl::string_view text, std::string* out) const {
  const size_t size_before = out->size();
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    size_t code_point = lead;
    if (lead >= 0x80) {
      // All of the alphabet is below U+0144, so two bytes at most.
      if ((lead & 0xE0) != 0xC0 || i + 1 >= text.size())
        code_point = byte_.size();
      else
        code_point = (size_t{lead} & 0x1F) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3F);
    }
    if (code_point >= byte_.size() || byte_[code_point] < 0) {
      out->resize(size_before);
      return false;
    }
    out->push_back(static_cast<char>(byte_[code_point]));
  }
  return true;
}

}  // namespace baton::model
