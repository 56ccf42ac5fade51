// Tokenizer::Encode.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/merge_queue.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"
#include "utf8proc.h"

namespace baton::model {
namespace {

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // U+2581

// `text` in Unicode normal form C.
absl::StatusOr<std::string> ToNfc(absl::string_view text) {
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &normal, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("bringing the text to Unicode NFC: ", utf8proc_errmsg(size)));
  }
  std::string result(reinterpret_cast<char*>(normal), static_cast<size_t>(size));
  std::free(normal);
  return result;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.size(), " bytes; at most ", kMaxTextBytes,
                                                   " can be tokenized at once. Send a shorter one."));
  }
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8: the first bad byte is at offset ",
                                                   *bad, " of ", text.size(), ". Send text as UTF-8, or token ids."));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 2);
  if (options.add_special && data_.add_bos) ids.push_back(data_.bos_id);
  // llama's user-defined tokens are found later, in escaped text.
  const bool search = options.parse_special || byte_level_;
  const TokenTrie& tokens = options.parse_special ? special_tokens_ : user_tokens_;
  size_t at = 0;
  while (at < text.size()) {
    size_t found = text.size();
    TokenTrie::Match match;
    if (search) match = tokens.Find(text, at, &found);
    if (found > at) {
      absl::Status status = EncodeFragment(text.substr(at, found - at), &ids);
      if (!status.ok()) return status;
    }
    if (match.token_id >= 0) ids.push_back(match.token_id);
    at = found + match.size;
  }
  if (options.add_special && data_.add_eos) ids.push_back(data_.eos_id);
  return ids;
}

absl::Status Tokenizer::EncodeFragment(absl::string_view text, std::vector<int32_t>* out) const {
  if (byte_level_) return EncodeByteLevel(text, out);
  // As Hugging Face's Llama tokenizers do, the prefix comes after each special token too, not only at the start.
  std::string escaped = data_.add_space_prefix ? kSpaceSymbol : "";
  escaped += absl::StrReplaceAll(text, {{" ", kSpaceSymbol}});
  EncodeSentencePiece(escaped, out);
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeByteLevel(absl::string_view text, std::vector<int32_t>* out) const {
  std::string normal;
  if (pre_tokenizer_->nfc() && !IsAscii(text)) {
    absl::StatusOr<std::string> nfc = ToNfc(text);
    if (!nfc.ok()) return nfc.status();
    normal = *std::move(nfc);
    text = normal;
  }
  absl::StatusOr<std::vector<absl::string_view>> words = pre_tokenizer_->Split(text);
  if (!words.ok()) return words.status();
  for (const absl::string_view word : *words) EncodeWord(word, out);
  return absl::OkStatus();
}

void Tokenizer::EncodeWord(absl::string_view word, std::vector<int32_t>* out) const {
  if (pre_tokenizer_->ignore_merges()) {
    std::string spelled;
    for (const char c : word) spelled += ByteLevelAlphabet::Get().ForByte(static_cast<uint8_t>(c));
    if (const int32_t id = TokenId(spelled); id >= 0) {
      out->push_back(id);
      return;
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(word[i])];
    if (id < 0) continue;  // no token stands for this byte
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<int32_t>(i), 1, index - 1, index + 1, id, false});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  MergeSymbols(&symbols, [this](const Symbol& left, const Symbol& right) -> std::optional<MergeResult> {
    const uint64_t key = uint64_t{static_cast<uint32_t>(left.token_id)} << 32 | static_cast<uint32_t>(right.token_id);
    const auto it = merges_.find(key);
    if (it == merges_.end()) return std::nullopt;
    return MergeResult{static_cast<double>(it->second.rank), it->second.token_id};
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.size > 0) out->push_back(symbol.token_id);
  }
}

void Tokenizer::EncodeSentencePiece(absl::string_view text, std::vector<int32_t>* out) const {
  const auto piece_id = [this](absl::string_view piece) {
    const auto it = pieces_.find(piece);
    return it == pieces_.end() ? -1 : it->second;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    TokenTrie::Match user = user_tokens_.LongestAt(text, i);
    const bool frozen = user.token_id >= 0;
    if (!frozen) {
      user.size = std::min<size_t>(Utf8SequenceLength(static_cast<uint8_t>(text[i])), text.size() - i);
      user.token_id = piece_id(text.substr(i, user.size));
    }
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back(
        {static_cast<int32_t>(i), static_cast<int32_t>(user.size), index - 1, index + 1, user.token_id, frozen});
    i += user.size;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  MergeSymbols(&symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<MergeResult> {
    const size_t size = static_cast<size_t>(left.size) + right.size;
    if (size > max_piece_bytes_) return std::nullopt;
    const int32_t id = piece_id(text.substr(left.begin, size));
    if (id < 0) return std::nullopt;
    return MergeResult{-static_cast<double>(data_.scores[id]), id};
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) continue;
    if (symbol.token_id >= 0) {
      out->push_back(symbol.token_id);
      continue;
    }
    for (const char c : text.substr(symbol.begin, symbol.size)) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        out->push_back(id);
      } else if (data_.unk_id >= 0) {  // a vocabulary without byte tokens: one unknown for the code point
        out->push_back(data_.unk_id);
        break;
      }
    }
  }
}

}  // namespace baton::model
