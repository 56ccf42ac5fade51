// Text to token ids, and token ids to bytes, as the model's vocabulary has it.
//
// Two kinds of vocabulary: "gpt2" (byte-level BPE by merge rank, after a pre-tokenizer) and "llama" (SentencePiece BPE
// by score, spaces as U+2581, unknown code points as byte tokens). Ids equal those of Hugging Face `tokenizers` for the
// first and of `sentencepiece` for the second.
#ifndef BATON_MODEL_TOKENIZER_TOKENIZER_H_
#define BATON_MODEL_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/token_trie.h"

namespace baton::model {

// Numbers as GGUF's tokenizer.ggml.token_type writes them.
enum class TokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // a special token: not text
  kUserDefined = 4,  // text, never split
  kUnused = 5,
  kByte = 6,  // <0xXX>
};

// A vocabulary as a model file gives it (GGUF's keys tokenizer.ggml.*). Absent ids are -1.
struct TokenizerData {
  std::string model;                 // "gpt2" or "llama"
  std::string pre;                   // gpt2: the pre-tokenizer's name
  std::vector<std::string> tokens;   // index = id
  std::vector<int32_t> token_types;  // as tokens, or empty: all normal
  std::vector<std::string> merges;   // gpt2: "left right", best first
  std::vector<float> scores;         // llama: as tokens
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t eot_id = -1;
  int32_t eom_id = -1;
  int32_t unk_id = -1;
  int32_t pad_id = -1;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // llama: text starts with a space that is not there
};

struct EncodeOptions {
  // Put bos before and eos after, where the model file asks for it. False for a rendered chat template, which writes
  // its own.
  bool add_special = true;
  // Special tokens written in the text become those tokens, as Hugging Face does by default and as a rendered chat
  // template needs. False: "<|im_end|>" is ten characters; for text that must not be able to end a turn. User-defined
  // tokens are text, so they are always recognised.
  bool parse_special = true;
};

// Immutable, so any number of threads may use one.
class Tokenizer {
 public:
  // Longest text Encode takes. Well under 2^31, so that offsets fit in 32 bits with room for escapes.
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;

  // InvalidArgument if the parts contradict each other (a merge of tokens that do not exist, an id out of range);
  // Unimplemented for a kind of vocabulary or a pre-tokenizer that is not known, naming those that are.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(TokenizerData data);

  // InvalidArgument if `text` is not UTF-8 (the message has the byte offset) or longer than kMaxTextBytes. Takes time
  // n log n in the length. Bytes for which a byte-level vocabulary has no token (SmolLM2 lacks 21, among them some
  // control characters) are left out, as the reference does.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options = {}) const;

  // All of `ids` as text; invalid byte sequences become U+FFFD. The leading space that add_space_prefix put there is
  // taken off. InvalidArgument for an id outside the vocabulary.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes token `id` stands for; a special token's are its name. InvalidArgument outside the vocabulary. The view
  // lives as long as the tokenizer.
  absl::StatusOr<absl::string_view> TokenBytes(int32_t id) const;

  int32_t vocab_size() const { return static_cast<int32_t>(data_.tokens.size()); }
  bool IsSpecial(int32_t id) const;          // control or unknown; false outside the vocabulary
  bool IsEndOfGeneration(int32_t id) const;  // one of eos_ids()
  // Ids that end an answer, ascending: eos, eot, eom and the special tokens known to end a turn.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  int32_t bos_id() const { return data_.bos_id; }  // -1: none; so for the others
  int32_t eos_id() const { return data_.eos_id; }
  int32_t unk_id() const { return data_.unk_id; }
  int32_t pad_id() const { return data_.pad_id; }
  bool add_bos() const { return data_.add_bos; }
  bool add_eos() const { return data_.add_eos; }
  // The token's text as the model file writes it, for chat templates (bos_token); "" for an id outside.
  absl::string_view TokenText(int32_t id) const;
  // The id whose text in the model file is `text`, or -1.
  int32_t TokenId(absl::string_view text) const;

 private:
  explicit Tokenizer(TokenizerData data) : data_(std::move(data)) {}

  absl::Status CheckData() const;
  absl::Status InitCommon();
  absl::Status InitMerges();
  void InitBytes();
  void InitEosIds();
  TokenType TypeOf(int32_t id) const;

  absl::Status EncodeFragment(absl::string_view text, std::vector<int32_t>* out) const;
  absl::Status EncodeByteLevel(absl::string_view text, std::vector<int32_t>* out) const;
  void EncodeWord(absl::string_view word, std::vector<int32_t>* out) const;
  void EncodeSentencePiece(absl::string_view text, std::vector<int32_t>* out) const;

  struct Merge {
    int32_t rank;
    int32_t token_id;
  };

  TokenizerData data_;
  bool byte_level_ = false;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;     // views into data_.tokens
  absl::flat_hash_map<absl::string_view, int32_t> pieces_;  // llama: what merging may make
  absl::flat_hash_map<uint64_t, Merge> merges_;             // gpt2: left id << 32 | right id
  int32_t byte_ids_[256];                                   // token of a single byte, or -1
  size_t max_piece_bytes_ = 0;
  TokenTrie special_tokens_;  // what parse_special finds: control tokens, and for gpt2 user-defined ones
  TokenTrie user_tokens_;     // user-defined tokens; llama: with U+2581 for spaces
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::string bytes_;             // all tokens' bytes, one after another
  std::vector<size_t> bytes_at_;  // [vocab_size + 1]
  std::vector<int32_t> eos_ids_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_TOKENIZER_H_
