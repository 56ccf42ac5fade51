#include "model/template/lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

// All line ends as \n, and without the one that ends the text.
std::string NormalizeNewlines(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80; }
bool IsNameChar(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) JINJA_RETURN_IF_ERROR(LexData());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kBlock, kVariable, kComment };

  absl::string_view Rest() const { return absl::string_view(source_).substr(at_); }

  void Add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  void Advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    if (bytes > 0) line_starting_ = source_[at_ + bytes - 1] == '\n';
    at_ += bytes;
  }

  void SkipSpaces() {
    size_t end = at_;
    while (end < source_.size() && IsSpace(CodePointAt(source_, end))) end += CodePointSize(source_, end);
    Advance(end - at_);
  }

  // Text up to the next tag, then that tag.
  absl::Status LexData() {
    size_t tag_at = at_;
    while (true) {
      tag_at = source_.find('{', tag_at);
      if (tag_at == std::string::npos || tag_at + 1 >= source_.size()) break;
      const char next = source_[tag_at + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++tag_at;
    }
    if (tag_at == std::string::npos || tag_at + 1 >= source_.size()) {
      const std::string text(Rest());
      Add(TokenKind::kData, text);
      Advance(text.size());
      return absl::OkStatus();
    }
    const char mark = source_[tag_at + 1];
    const Tag tag = mark == '%' ? Tag::kBlock : mark == '{' ? Tag::kVariable : Tag::kComment;
    const char sign = tag_at + 2 < source_.size() ? source_[tag_at + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    absl::string_view text = absl::string_view(source_).substr(at_, tag_at - at_);
    text = TrimBefore(text, tag, has_sign ? sign : '\0');
    if (!text.empty()) Add(TokenKind::kData, std::string(text));
    Advance(tag_at - at_ + 2 + (has_sign ? 1 : 0));
    if (tag == Tag::kComment) return LexComment();
    if (tag == Tag::kBlock && AtRaw()) return LexRaw();
    return LexTag(tag);
  }

  absl::string_view TrimBefore(absl::string_view text, Tag tag, char sign) const {
    if (sign == '-') return Strip(text, std::nullopt, Side::kRight);
    if (sign == '+' || tag == Tag::kVariable) return text;
    // lstrip_blocks: white space between the start of the line and the tag goes.
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == absl::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return text;
    if (Strip(text.substr(line_start), std::nullopt, Side::kBoth).empty()) return text.substr(0, line_start);
    return text;
  }

  // After the end of a block or comment; trim_blocks: one newline goes.
  void TrimAfter(char sign) {
    if (sign == '-') {
      SkipSpaces();
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      Advance(1);
    }
  }

  absl::Status LexComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return SyntaxError(line_, "a comment is not closed by #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Advance(end + 2 - at_);
    TrimAfter(sign);
    return absl::OkStatus();
  }

  // Where a "%}" that follows `word` (white space around it) begins its sign; nullopt if there is none.
  struct WordTag {
    size_t end;
    char sign;
  };
  std::optional<WordTag> MatchWord(size_t from, absl::string_view word) const {
    size_t i = from;
    const auto skip = [&] {
      while (i < source_.size() && IsSpace(CodePointAt(source_, i))) i += CodePointSize(source_, i);
    };
    skip();
    if (!absl::StartsWith(absl::string_view(source_).substr(i), word)) return std::nullopt;
    i += word.size();
    skip();
    char sign = '\0';
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
    if (!absl::StartsWith(absl::string_view(source_).substr(i), "%}")) return std::nullopt;
    return WordTag{i + 2, sign};
  }

  bool AtRaw() const {
    const std::optional<WordTag> tag = MatchWord(at_, "raw");
    return tag.has_value() && tag->sign != '+';
  }

  absl::Status LexRaw() {
    const int first_line = line_;
    const WordTag begin = *MatchWord(at_, "raw");
    Advance(begin.end - at_);
    if (begin.sign == '-') SkipSpaces();
    for (size_t tag_at = at_; (tag_at = source_.find("{%", tag_at)) != std::string::npos; tag_at += 2) {
      size_t inner = tag_at + 2;
      char sign = '\0';
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) sign = source_[inner++];
      const std::optional<WordTag> end = MatchWord(inner, "endraw");
      if (!end.has_value()) continue;
      const absl::string_view text =
          TrimBefore(absl::string_view(source_).substr(at_, tag_at - at_), Tag::kBlock, sign);
      if (!text.empty()) Add(TokenKind::kData, std::string(text));
      Advance(end->end - at_);
      TrimAfter(end->sign);
      return absl::OkStatus();
    }
    return SyntaxError(first_line, "a raw block is not closed by endraw");
  }

  absl::Status LexTag(Tag tag) {
    const bool is_block = tag == Tag::kBlock;
    const int first_line = line_;
    Add(is_block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, is_block ? "{%" : "{{");
    std::string open;  // brackets that are open; the tag's end is not looked for inside
    while (true) {
      SkipSpaces();
      if (at_ >= source_.size())
        return SyntaxError(first_line, absl::StrCat("a tag is not closed by ", is_block ? "%}" : "}}"));
      const absl::string_view rest = Rest();
      if (open.empty()) {
        const absl::string_view close = is_block ? "%}" : "}}";
        const bool has_sign = rest[0] == '-' || (is_block && rest[0] == '+');
        if (absl::StartsWith(rest.substr(has_sign ? 1 : 0), close)) {
          const char sign = has_sign ? rest[0] : '\0';
          Add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, std::string(close));
          Advance(2 + (has_sign ? 1 : 0));
          if (is_block) {
            TrimAfter(sign);
          } else if (sign == '-') {
            SkipSpaces();
          }
          return absl::OkStatus();
        }
      }
      JINJA_RETURN_IF_ERROR(LexToken(rest, &open));
    }
  }

  absl::Status LexToken(absl::string_view rest, std::string* open) {
    const char c = rest[0];
    if (absl::ascii_isdigit(c)) return LexNumber(rest);
    if (IsNameStart(c)) {
      size_t size = 1;
      while (size < rest.size() && IsNameChar(rest[size])) ++size;
      Add(TokenKind::kName, std::string(rest.substr(0, size)));
      Advance(size);
      return absl::OkStatus();
    }
    if (c == '\'' || c == '"') return LexString(rest);
    return LexOperator(rest, open);
  }

  absl::Status LexOperator(absl::string_view rest, std::string* open) {
    static constexpr const char* kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = rest[0];
    for (const char* op : kTwo) {
      if (absl::StartsWith(rest, op)) {
        Add(TokenKind::kOperator, op);
        Advance(2);
        return absl::OkStatus();
      }
    }
    if (absl::string_view("+-/*%~[](){}><=.:|,").find(c) == absl::string_view::npos) {
      return SyntaxError(line_, absl::StrCat("unexpected character \"", rest.substr(0, CodePointSize(rest, 0)), "\""));
    }
    if (c == '(' || c == '[' || c == '{') {
      open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c)
        return SyntaxError(line_, absl::StrCat("unexpected \"", rest.substr(0, 1), "\""));
      open->pop_back();
    }
    Add(TokenKind::kOperator, std::string(1, c));
    Advance(1);
    return absl::OkStatus();
  }

  absl::Status LexNumber(absl::string_view rest) {
    const auto digits = [&](size_t i) {  // the end of digits with single underscores between them
      while (i < rest.size() && (absl::ascii_isdigit(rest[i]) ||
                                 (rest[i] == '_' && i + 1 < rest.size() && absl::ascii_isdigit(rest[i + 1])))) {
        ++i;
      }
      return i;
    };
    size_t size = 0;
    bool is_float = false;
    if (rest.size() > 2 && rest[0] == '0' && absl::string_view("xXoObB").find(rest[1]) != absl::string_view::npos) {
      size = 2;
      while (size < rest.size() && (absl::ascii_isalnum(rest[size]) || rest[size] == '_')) ++size;
    } else {
      size = digits(0);
      // "1.x" is an attribute of 1, and "a.0.1" two items.
      const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
      if (!after_dot && size + 1 < rest.size() && rest[size] == '.' && absl::ascii_isdigit(rest[size + 1])) {
        is_float = true;
        size = digits(size + 1);
      }
      if (!after_dot && size < rest.size() && (rest[size] == 'e' || rest[size] == 'E')) {
        size_t exponent = size + 1;
        if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
        if (exponent < rest.size() && absl::ascii_isdigit(rest[exponent])) {
          is_float = true;
          size = digits(exponent);
        }
      }
    }
    Token token;
    token.kind = TokenKind::kNumber;
    token.text = std::string(rest.substr(0, size));
    token.line = line_;
    if (is_float) {
      const std::optional<double> value = ParseFloat(token.text);
      if (!value.has_value()) return SyntaxError(line_, absl::StrCat("\"", token.text, "\" is no number"));
      token.number = Value(*value);
    } else {
      const std::optional<Int> value = ParseInt(token.text, 0);
      if (!value.has_value())
        return SyntaxError(line_, absl::StrCat("\"", token.text, "\" is no number that fits in 128 bits"));
      token.number = Value(*value);
    }
    tokens_.push_back(std::move(token));
    Advance(size);
    return absl::OkStatus();
  }

  absl::Status LexString(absl::string_view rest) {
    const char quote = rest[0];
    size_t end = 1;
    while (end < rest.size() && rest[end] != quote) end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) return SyntaxError(line_, "a string is not closed");
    std::string text;
    JINJA_RETURN_IF_ERROR(Unescape(rest.substr(1, end - 1), &text));
    Add(TokenKind::kString, std::move(text));
    Advance(end + 1);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is.
  absl::Status Unescape(absl::string_view text, std::string* out) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out->push_back(text[i]);
        continue;
      }
      const char c = text[++i];  // the lexer made sure that something follows
      static constexpr absl::string_view kFrom = "\\'\"abfnrtv";
      static constexpr char kTo[] = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t simple = kFrom.find(c); simple != absl::string_view::npos) {
        out->push_back(kTo[simple]);
      } else if (c == '\n') {  // a continued line
      } else if (c >= '0' && c <= '7') {
        int value = 0;
        size_t n = 0;
        for (; n < 3 && i + n < text.size() && text[i + n] >= '0' && text[i + n] <= '7'; ++n)
          value = value * 8 + text[i + n] - '0';
        i += n - 1;
        AppendCodePoint(value, out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const std::optional<Int> value = text.size() - i - 1 < n ? std::nullopt : ParseInt(text.substr(i + 1, n), 16);
        const bool is_hex =
            value.has_value() && std::all_of(text.begin() + i + 1, text.begin() + i + 1 + n, absl::ascii_isxdigit);
        if (!is_hex || *value > 0x10FFFF || (*value >= 0xD800 && *value < 0xE000)) {
          return SyntaxError(line_, absl::StrCat("a \\", text.substr(i, 1), " escape needs ", n,
                                                 " hexadecimal digits of a code point"));
        }
        AppendCodePoint(static_cast<int32_t>(*value), out);
        i += n;
      } else if (c == 'N') {
        return SyntaxError(line_, "\\N escapes are not supported");
      } else {
        out->push_back('\\');
        out->push_back(c);
      }
    }
    return absl::OkStatus();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status SyntaxError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", line, ": ", what));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) { return Lexer(source).Run(); }

}  // namespace baton::model::jinja
