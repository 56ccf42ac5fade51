#include "constraint/gbnf.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "constraint/expression.h"

namespace baton::constraint {
namespace {

class GbnfParser : public ExpressionReader {
 public:
  GbnfParser(Builder* builder, absl::string_view text) : ExpressionReader(text), builder_(builder) {}

  // The root of each rule's expression; empty with status().
  std::map<Rule, int> Parse() {
    RuleOf("root");
    for (Space(); More(); Space()) ParseRule();
    if (status_.ok() && definitions_.count(0) == 0) {
      status_ = absl::InvalidArgumentError("no rule is called root (root ::= ...)");
    }
    for (const auto& [name, rule] : rules_) {
      if (status_.ok() && definitions_.count(rule) == 0) {
        status_ = absl::InvalidArgumentError(absl::StrCat("rule \"", name, "\" is used and not defined"));
      }
    }
    return definitions_;
  }
  Rule root() { return numbers_[0]; }
  Rule NumberOf(Rule rule) const { return numbers_[rule]; }

 private:
  // White space and comments.
  void Space() {
    while (More()) {
      if (Peek() == '#') {
        while (More() && Peek() != '\n') ++at_;
      } else if (absl::ascii_isspace(static_cast<unsigned char>(Peek()))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool IsNameChar(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; }

  absl::string_view Name() {
    const size_t begin = at_;
    while (More() && IsNameChar(Peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Whether a rule's definition begins here.
  bool AtDefinition() {
    const size_t before = at_;
    const bool named = !Name().empty();
    Space();
    const bool defines = named && text_.substr(at_, 3) == "::=";
    at_ = before;
    return defines;
  }

  // Numbers of this grammar, in the order of first use; numbers_ has the builder's.
  Rule RuleOf(absl::string_view name) {
    const auto [it, fresh] = rules_.try_emplace(std::string(name), static_cast<Rule>(rules_.size()));
    if (fresh) numbers_.push_back(builder_->NewRule());
    if (rules_.size() > kMaxGbnfRules) Fail(absl::StrCat("more than ", kMaxGbnfRules, " rules"));
    return it->second;
  }

  void ParseRule() {
    if (!AtDefinition()) return Fail("expected a rule (name ::= ...)");
    const absl::string_view name = Name();
    const Rule rule = RuleOf(name);
    if (definitions_.count(rule) > 0) return Fail(absl::StrCat("rule \"", name, "\" is defined twice"));
    Space();
    Eat("::=");
    definitions_[rule] = Alternation(0);
  }

  int Alternation(int depth) {
    if (depth > kMaxExpressionDepth) {
      Fail(absl::StrCat("groups nest deeper than ", kMaxExpressionDepth));
      return 0;
    }
    Node node;
    node.kind = Node::Kind::kAlternate;
    do {
      node.children.push_back(Sequence(depth));
    } while (status_.ok() && Eat("|"));
    return New(std::move(node));
  }

  int Sequence(int depth) {
    Node node;
    node.kind = Node::Kind::kConcat;
    for (Space(); More() && Peek() != '|' && Peek() != ')'; Space()) {
      if (depth == 0 && AtDefinition()) break;
      const int atom = Atom(depth);
      if (!status_.ok()) break;
      Space();  // "a" * is allowed
      node.children.push_back(Repeated(atom));
      if (More() && IsRepeat(Peek())) Fail("nothing to repeat");
    }
    if (More() && Peek() == ')' && depth == 0) Fail("a ) without a (");
    return New(std::move(node));
  }

  static bool IsRepeat(char c) { return c == '*' || c == '+' || c == '?' || c == '{'; }

  int Atom(int depth) {
    const char c = Peek();
    if (c == '(') {
      ++at_;
      const int inner = Alternation(depth + 1);
      if (status_.ok() && !Eat(")")) Fail("a group is not closed");
      return inner;
    }
    if (c == '"') return Literal();
    if (c == '[') return NewSet(Class());
    if (c == '.') {
      ++at_;
      return NewSet({{0, kMaxCodePoint}});
    }
    const absl::string_view name = Name();
    if (name.empty()) {
      Fail(IsRepeat(c) ? "nothing to repeat" : "expected a rule's name, \"text\", [a-z], . or (");
      return 0;
    }
    Node node;
    node.kind = Node::Kind::kCall;
    node.rule = NumberOf(RuleOf(name));
    return New(std::move(node));
  }

  int Literal() {
    Node node;
    node.kind = Node::Kind::kConcat;
    ++at_;
    while (More() && Peek() != '"') {
      const uint32_t code = Character();
      node.children.push_back(NewSet({{code, code}}));
    }
    if (!Eat("\"")) Fail("a text is not closed");
    return New(std::move(node));
  }

  CodePointSet Class() {
    ++at_;
    const bool negated = Eat("^");
    CodePointSet set;
    while (More() && Peek() != ']') {
      const uint32_t low = Character();
      uint32_t high = low;
      if (text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]" && at_ + 1 < text_.size()) {
        ++at_;
        high = Character();
        if (high < low) Fail("a class's range has no order");
      }
      set.push_back({low, high});
    }
    if (!Eat("]")) Fail("a class is not closed");
    set = negated ? Complement(set) : Normalize(std::move(set));
    if (set.empty()) Fail("a class that nothing is in");
    return set;
  }

  // One code point of a text or a class.
  uint32_t Character() {
    if (Peek() != '\\') return CodePoint();
    ++at_;
    if (!More()) {
      Fail("a backslash at the end");
      return 0;
    }
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return Hex(2, 2);
      case 'u':
        return Hex(4, 4);
      case 'U':
        return Hex(8, 8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      default:
        --at_;
        Fail(absl::StrCat("\\", absl::string_view(&c, 1), " is not supported"));
        return 0;
    }
  }

  Builder* const builder_;
  std::map<std::string, Rule> rules_;
  std::vector<Rule> numbers_;
  std::map<Rule, int> definitions_;
};

}  // namespace

Rule BuildGbnf(Builder* builder, absl::string_view text) {
  if (text.size() > kMaxGbnfBytes) {
    builder->Fail(
        absl::InvalidArgumentError(absl::StrCat("a grammar of ", text.size(), " bytes; at most ", kMaxGbnfBytes)));
    return 0;
  }
  GbnfParser parser(builder, text);
  const std::map<Rule, int> definitions = parser.Parse();
  if (!parser.status().ok()) {
    builder->Fail(absl::InvalidArgumentError(absl::StrCat("as GBNF: ", parser.status().message())));
    return 0;
  }
  for (const auto& [rule, expression] : definitions) {
    const Rule number = parser.NumberOf(rule);
    builder->End(Emit(builder, parser.nodes(), expression, builder->begin(number), /*json=*/false));
  }
  return parser.root();
}

}  // namespace baton::constraint
