// One choice's token ids to the text a client sees: detokenized, cut at a stop string, and held back where a stop
// string may have begun.
#ifndef BATON_MODEL_TOKENIZER_TEXT_STREAM_H_
#define BATON_MODEL_TOKENIZER_TEXT_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace baton::model {

// A fixed set of stop strings, searched for byte by byte (Aho-Corasick), so that the cost per byte does not depend on
// how many there are. Immutable, so that all choices of a request can share one.
class StopStrings {
 public:
  static constexpr size_t kMaxStrings = 256;
  static constexpr size_t kMaxTotalBytes = 64 << 10;

  // InvalidArgument for an empty string, one that is not UTF-8, or too many.
  static absl::StatusOr<std::shared_ptr<const StopStrings>> Create(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  absl::string_view string(int index) const { return strings_[index]; }

  // The state after nothing is 0.
  uint32_t Next(uint32_t state, uint8_t byte) const;
  // How many of the last bytes are the beginning of some stop string.
  uint32_t HeldBytes(uint32_t state) const { return nodes_[state].depth; }
  // The longest stop string that ends here, or -1.
  int Match(uint32_t state) const { return nodes_[state].match; }

 private:
  struct Node {
    uint32_t depth = 0;
    uint32_t fallback = 0;  // the longest proper suffix that begins a stop string
    int32_t match = -1;
  };

  std::vector<std::string> strings_;
  std::vector<Node> nodes_ = {Node{}};
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // node * 256 + byte -> node
};

struct TextStreamOptions {
  bool include_stop_str = false;  // the text ends after the stop string, not before it
  bool skip_special = true;       // special tokens make no text (and so cannot be in a stop string)
  int64_t min_tokens = 0;         // text of the tokens before this many matches no stop string
};

// Not thread safe. The tokenizer must outlive it.
//
// What is emitted does not depend on how the same bytes are cut into tokens: the stop string whose last byte comes
// first wins; of several that end there, the longest.
class TextStream {
 public:
  struct Output {
    std::string text;                        // may be printed now
    std::optional<std::string> stop_string;  // set when it was matched; the stream has ended and text is its last
  };

  // `stops` may be null: none.
  TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopStrings> stops,
             const TextStreamOptions& options = {});

  // InvalidArgument for an id outside the vocabulary (nothing changes). FailedPrecondition once stopped or finished.
  absl::StatusOr<Output> Append(int32_t token_id);

  // No more tokens: the text held back. An unfinished code point is U+FFFD, which may complete a stop string. Empty
  // when already stopped or finished.
  Output Finish();

  bool stopped() const { return stopped_; }  // a stop string was matched
  // Tokens appended; the one that completes a stop string counts, so this is what usage reports.
  int64_t num_tokens() const { return num_tokens_; }

 private:
  Output Search(absl::string_view text);

  Detokenizer detokenizer_;
  std::shared_ptr<const StopStrings> stops_;
  TextStreamOptions options_;
  uint32_t state_ = 0;
  std::string held_;  // exactly stops_->HeldBytes(state_) bytes
  int64_t num_tokens_ = 0;
  bool stopped_ = false;
  bool finished_ = false;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_TEXT_STREAM_H_
