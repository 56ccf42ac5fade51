// The seam between a request's life cycle and text: one stream of bytes per choice, with stop strings.
#ifndef BATON_ROUTER_CHOICE_TEXT_H_
#define BATON_ROUTER_CHOICE_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/inference.pb.h"

namespace baton::router {

struct TextPiece {
  std::string text;                        // printable with this token: whole code points, stop strings held back
  std::optional<std::string> stop_string;  // the choice ends here; `text` ends before the match (or with it, if asked)
};

// One choice's output. Thread-compatible.
class ChoiceText {
 public:
  virtual ~ChoiceText() = default;
  virtual TextPiece Push(int32_t token_id) = 0;
  // `token_id` ends the choice as EOS or a stop id; it is text only where the request includes stop strings.
  virtual TextPiece PushStop(int32_t token_id) = 0;
  // The choice ended: what was held back. An unfinished code point becomes U+FFFD, which may complete a stop string.
  virtual TextPiece Flush() = 0;
};

// Thread-safe.
class TextMaker {
 public:
  virtual ~TextMaker() = default;
  virtual std::unique_ptr<ChoiceText> NewChoice(const v1::SamplingParams& sampling) const = 0;
  virtual std::string TokenBytes(int32_t token_id) const = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CHOICE_TEXT_H_
