// Loading a vocabulary and looking tokens up; encoding is in encode.cc.
#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/utf8.h"

namespace baton::model {
namespace {

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // U+2581

// Names under which published models end a turn or a document, whether or not their file names them as eos.
constexpr const char* kEndOfTurnNames[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|call|>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

// "<0xXX>" -> byte, or -1.
int ByteOfToken(absl::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const std::string byte = absl::ascii_isxdigit(text[3]) && absl::ascii_isxdigit(text[4])
                               ? absl::HexStringToBytes(text.substr(3, 2))
                               : std::string();
  return byte.size() == 1 ? static_cast<uint8_t>(byte[0]) : -1;
}

absl::Status BadVocabulary(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the model file's tokenizer is unusable: ", what, ". Download or convert the model again."));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(TokenizerData data) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(data)));
  absl::Status status = tokenizer->CheckData();
  if (!status.ok()) return status;
  tokenizer->byte_level_ = tokenizer->data_.model == "gpt2";
  status = tokenizer->InitCommon();
  if (status.ok() && tokenizer->byte_level_) status = tokenizer->InitMerges();
  if (!status.ok()) return status;
  tokenizer->InitBytes();
  tokenizer->InitEosIds();
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

absl::Status Tokenizer::CheckData() const {
  if (data_.model != "gpt2" && data_.model != "llama") {
    return absl::UnimplementedError(absl::StrCat("the model's tokenizer is of kind \"", data_.model,
                                                 "\"; known are gpt2 (byte-level BPE) and llama (SentencePiece)"));
  }
  if (data_.tokens.empty()) return BadVocabulary("it has no tokens");
  if (data_.tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return BadVocabulary("it has more than 2^31 tokens");
  }
  if (!data_.token_types.empty() && data_.token_types.size() != data_.tokens.size()) {
    return BadVocabulary(
        absl::StrCat("it has ", data_.tokens.size(), " tokens but ", data_.token_types.size(), " token types"));
  }
  if (data_.model == "llama" && data_.scores.size() != data_.tokens.size()) {
    return BadVocabulary(absl::StrCat("it has ", data_.tokens.size(), " tokens but ", data_.scores.size(), " scores"));
  }
  for (size_t i = 0; i < data_.scores.size(); ++i) {
    if (std::isnan(data_.scores[i])) return BadVocabulary(absl::StrCat("the score of token ", i, " is not a number"));
  }
  const std::pair<const char*, int32_t> ids[] = {{"bos", data_.bos_id}, {"eos", data_.eos_id}, {"eot", data_.eot_id},
                                                 {"eom", data_.eom_id}, {"unk", data_.unk_id}, {"pad", data_.pad_id}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || id >= vocab_size()) {
      return BadVocabulary(absl::StrCat("its ", name, " id ", id, " is outside its ", vocab_size(), " tokens"));
    }
  }
  if (data_.add_bos && data_.bos_id < 0) return BadVocabulary("it asks for a bos token but names none");
  if (data_.add_eos && data_.eos_id < 0) return BadVocabulary("it asks for an eos token but names none");
  return absl::OkStatus();
}

TokenType Tokenizer::TypeOf(int32_t id) const {
  return data_.token_types.empty() ? TokenType::kNormal : static_cast<TokenType>(data_.token_types[id]);
}

absl::Status Tokenizer::InitCommon() {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  ids_.reserve(data_.tokens.size());
  for (int32_t id = 0; id < vocab_size(); ++id) {
    std::string& token = data_.tokens[id];
    const TokenType type = TypeOf(id);
    // Converters write SentencePiece's user-defined runs of U+2581 as spaces; matching is on escaped text.
    if (!byte_level_ && type == TokenType::kUserDefined) token = absl::StrReplaceAll(token, {{" ", kSpaceSymbol}});
    ids_[token] = id;
    switch (type) {
      case TokenType::kControl:
        special_tokens_.Add(token, id);
        break;
      case TokenType::kUserDefined:
        if (byte_level_) special_tokens_.Add(token, id);
        user_tokens_.Add(token, id);
        break;
      case TokenType::kByte:
        if (const int byte = ByteOfToken(token); byte >= 0) byte_ids_[byte] = id;
        break;
      default:
        break;
    }
    if (!byte_level_ && type != TokenType::kControl && type != TokenType::kUnknown && type != TokenType::kByte) {
      pieces_[token] = id;
      max_piece_bytes_ = std::max(max_piece_bytes_, token.size());
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::InitMerges() {
  auto pre_tokenizer = PreTokenizer::Create(data_.pre);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  pre_tokenizer_ = *std::move(pre_tokenizer);

  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = TokenId(ByteLevelAlphabet::Get().ForByte(static_cast<uint8_t>(byte)));
  }
  merges_.reserve(data_.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const absl::string_view merge = data_.merges[rank];
    // The alphabet has no space, so a well-formed merge has exactly one, between its halves.
    const size_t space = merge.find(' ', 1);
    if (space == absl::string_view::npos) {
      return BadVocabulary(absl::StrCat("merge ", rank, " \"", absl::CEscape(merge), "\" is not two tokens"));
    }
    const absl::string_view left = merge.substr(0, space);
    const absl::string_view right = merge.substr(space + 1);
    joined.assign(left.data(), left.size());
    joined.append(right.data(), right.size());
    const int32_t left_id = TokenId(left);
    const int32_t right_id = TokenId(right);
    const int32_t joined_id = TokenId(joined);
    if (left_id < 0 || right_id < 0 || joined_id < 0) {
      return BadVocabulary(
          absl::StrCat("merge ", rank, " \"", absl::CEscape(merge), "\" needs a token that is not in it"));
    }
    const uint64_t key = uint64_t{static_cast<uint32_t>(left_id)} << 32 | static_cast<uint32_t>(right_id);
    merges_.try_emplace(key, Merge{static_cast<int32_t>(rank), joined_id});
  }
  return absl::OkStatus();
}

void Tokenizer::InitBytes() {
  bytes_at_.reserve(data_.tokens.size() + 1);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    bytes_at_.push_back(bytes_.size());
    const std::string& token = data_.tokens[id];
    const TokenType type = TypeOf(id);
    if (type == TokenType::kControl || type == TokenType::kUnknown ||
        (byte_level_ && type == TokenType::kUserDefined)) {
      bytes_ += token;
    } else if (byte_level_) {
      if (!ByteLevelAlphabet::Get().Decode(token, &bytes_)) bytes_ += token;
    } else if (const int byte = type == TokenType::kByte ? ByteOfToken(token) : -1; byte >= 0) {
      bytes_.push_back(static_cast<char>(byte));
    } else {
      bytes_ += absl::StrReplaceAll(token, {{kSpaceSymbol, " "}});
    }
  }
  bytes_at_.push_back(bytes_.size());
}

void Tokenizer::InitEosIds() {
  for (const int32_t id : {data_.eos_id, data_.eot_id, data_.eom_id}) {
    if (id >= 0) eos_ids_.push_back(id);
  }
  for (const char* name : kEndOfTurnNames) {
    const int32_t id = TokenId(name);
    if (id >= 0 && (TypeOf(id) == TokenType::kControl || TypeOf(id) == TokenType::kUserDefined)) {
      eos_ids_.push_back(id);
    }
  }
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
}

absl::StatusOr<absl::string_view> Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is outside the vocabulary; this model has ids 0 to ", vocab_size() - 1));
  }
  return absl::string_view(bytes_).substr(bytes_at_[id], bytes_at_[id + 1] - bytes_at_[id]);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return false;
  return TypeOf(id) == TokenType::kControl || TypeOf(id) == TokenType::kUnknown;
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const { return std::binary_search(eos_ids_.begin(), eos_ids_.end(), id); }

absl::string_view Tokenizer::TokenText(int32_t id) const {
  return id < 0 || id >= vocab_size() ? absl::string_view() : absl::string_view(data_.tokens[id]);
}

int32_t Tokenizer::TokenId(absl::string_view text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? -1 : it->second;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  DetokenizerOptions options;
  options.skip_special = skip_special;
  options.strip_space_prefix = !byte_level_ && data_.add_space_prefix;
  Detokenizer detokenizer(this, options);
  std::string text;
  for (const int32_t id : ids) {
    absl::Status status = detokenizer.Append(id, &text);
    if (!status.ok()) return status;
  }
  detokenizer.Flush(&text);
  return text;
}

}  // namespace baton::model
