// A template's text to tokens. White space control and trimming are done here.
#ifndef BATON_MODEL_TEMPLATE_LEXER_H_
#define BATON_MODEL_TEMPLATE_LEXER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/template/value.h"

namespace baton::model::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, name, string contents, or the operator
  Value number;      // kNumber
  int line = 1;
};

// InvalidArgument for text that is no template; the message has the line. The last token is kEnd.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// "line N: what", as InvalidArgument.
absl::Status SyntaxError(int line, absl::string_view what);

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_LEXER_H_
