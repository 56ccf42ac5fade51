#include "constraint/regex.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "constraint/expression.h"

namespace baton::constraint {
namespace {

class Parser : public ExpressionReader {
 public:
  explicit Parser(absl::string_view text) : ExpressionReader(text) {}

  // The root's number, or -1 with status().
  int Parse() {
    const int root = Alternation(0);
    if (status_.ok() && at_ < text_.size()) Fail("a ) without a (");
    return status_.ok() ? root : -1;
  }

 private:
  int Alternation(int depth) {
    if (depth > kMaxExpressionDepth) {
      Fail(absl::StrCat("groups nest deeper than ", kMaxExpressionDepth));
      return 0;
    }
    Node node;
    node.kind = Node::Kind::kAlternate;
    do {
      node.children.push_back(Concatenation(depth));
    } while (status_.ok() && Eat("|"));
    return New(std::move(node));
  }

  int Concatenation(int depth) {
    Node node;
    node.kind = Node::Kind::kConcat;
    if (depth == 0 && Eat("^")) node.at_begin = true;
    while (More() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$' && depth == 0 && (at_ + 1 == text_.size() || text_[at_ + 1] == '|')) {
        ++at_;
        node.at_end = true;
        break;
      }
      node.children.push_back(Repetition(depth));
    }
    return New(std::move(node));
  }

  int Repetition(int depth) {
    const int atom = Atom(depth);
    const int repeated = Repeated(atom);
    if (repeated == atom) return atom;
    Eat("?");  // lazy: the same texts
    if (More() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) Fail("nothing to repeat");
    return repeated;
  }

  int Atom(int depth) {
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      if (Eat("?")) Group();
      const int inner = status_.ok() ? Alternation(depth + 1) : 0;
      if (status_.ok() && !Eat(")")) Fail("a group is not closed");
      return inner;
    }
    Node node;
    node.kind = Node::Kind::kSet;
    if (c == '[') {
      node.set = Class();
    } else if (c == '.') {
      ++at_;
      node.set = Complement({{'\n', '\n'}});
    } else if (c == '\\') {
      node.set = Escape(false);
    } else if (c == '*' || c == '+' || c == '?' || c == '{') {
      Fail("nothing to repeat");
    } else if (c == '^' || c == '$') {
      Fail("^ and $ are supported at the beginning and the end only");
    } else {
      const uint32_t code = CodePoint();
      node.set = {{code, code}};
    }
    return New(std::move(node));
  }

  void Group() {
    if (Eat(":")) return;
    if (Eat("P<") ||
        (text_.substr(at_, 1) == "<" && text_.substr(at_, 2) != "<=" && text_.substr(at_, 2) != "<!" && Eat("<"))) {
      while (More() && text_[at_] != '>') ++at_;
      if (!Eat(">")) Fail("a group's name is not closed");
      return;
    }
    Fail("look-around assertions and flags are not supported");
  }

  static CodePointSet Shorthand(char c) {
    switch (c) {
      case 'd':
        return {{'0', '9'}};
      case 'w':
        return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
      case 's':
        return {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}};
      case 'D':
      case 'W':
      case 'S':
        return Complement(Shorthand(static_cast<char>(c - 'A' + 'a')));
      default:
        return {};
    }
  }

  // A set of one code point unless it is a shorthand.
  CodePointSet Escape(bool in_class) {
    ++at_;
    if (!More()) {
      Fail("a backslash at the end");
      return {};
    }
    const char c = text_[at_];
    if (CodePointSet set = Shorthand(c); !set.empty()) {
      ++at_;
      return set;
    }
    uint32_t code = 0;
    if (c == 'x' || c == 'u') {
      ++at_;
      if (c == 'x' && Eat("{")) {
        code = Hex(1, 6);
        if (!Eat("}")) Fail("a } is missing");
      } else {
        code = c == 'x' ? Hex(2, 2) : Hex(4, 4);
      }
      return {{code, code}};
    }
    constexpr absl::string_view kFrom = "ntrfv", kTo = "\n\t\r\f\v";
    if (const size_t i = kFrom.find(c); i != absl::string_view::npos) {
      ++at_;
      code = static_cast<uint32_t>(kTo[i]);
      return {{code, code}};
    }
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (word) {
      Fail(absl::StrCat("\\", absl::string_view(&c, 1), " is not supported",
                        c == 'b' || c == 'B'   ? " (word boundaries)"
                        : c >= '0' && c <= '9' ? " (back references)"
                                               : ""));
      return {};
    }
    code = CodePoint();
    return {{code, code}};
  }

  CodePointSet Class() {
    ++at_;
    const bool negated = Eat("^");
    CodePointSet set;
    bool first = true;
    while (More() && (first || text_[at_] != ']')) {
      first = false;
      if (text_.substr(at_, 2) == "[:") {
        Fail("POSIX classes are not supported");
        break;
      }
      CodePointSet low = text_[at_] == '\\' ? Escape(true) : Single();
      const bool range = text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]" && at_ + 1 < text_.size();
      if (range && low.size() == 1 && low[0].first == low[0].second) {
        ++at_;
        const CodePointSet high = text_[at_] == '\\' ? Escape(true) : Single();
        if (high.size() != 1 || high[0].first != high[0].second || high[0].first < low[0].first) {
          Fail("a class's range has no order");
          break;
        }
        low[0].second = high[0].first;
      }
      set.insert(set.end(), low.begin(), low.end());
    }
    if (!Eat("]")) Fail("a class is not closed");
    set = negated ? Complement(set) : Normalize(std::move(set));
    if (set.empty()) Fail("a class that nothing is in");
    return set;
  }

  CodePointSet Single() {
    const uint32_t code = CodePoint();
    return {{code, code}};
  }
};

}  // namespace

State AddRegex(Builder* builder, State from, absl::string_view regex, const RegexOptions& options) {
  if (regex.size() > kMaxRegexBytes) {
    builder->Fail(absl::InvalidArgumentError(
        absl::StrCat("is a regular expression of ", regex.size(), " bytes; at most ", kMaxRegexBytes)));
    return from;
  }
  Parser parser(regex);
  const int root = parser.Parse();
  if (root < 0) {
    builder->Fail(absl::InvalidArgumentError(absl::StrCat("as a regular expression: ", parser.status().message())));
    return from;
  }
  const State end = builder->NewState();
  const auto anything = [&](State loop) { EmitSet(builder, loop, {{0, kMaxCodePoint}}, loop, options.json); };
  for (const int alternative : parser.nodes()[static_cast<size_t>(root)].children) {
    const Node& node = parser.nodes()[static_cast<size_t>(alternative)];
    State at = builder->NewState();
    builder->Empty(from, at);
    if (!options.whole && !node.at_begin) anything(at);
    at = Emit(builder, parser.nodes(), alternative, at, options.json);
    if (!options.whole && !node.at_end) {
      const State tail = builder->NewState();
      builder->Empty(at, tail);
      anything(tail);
      at = tail;
    }
    builder->Empty(at, end);
  }
  return end;
}

}  // namespace baton::constraint
