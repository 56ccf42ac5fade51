#include "constraint/regex.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::constraint {
namespace {

constexpr uint32_t kMaxCodePoint = 0x10ffff;
using Range = std::pair<uint32_t, uint32_t>;
using Set = std::vector<Range>;  // after Normalize: ascending, apart

Set Normalize(Set set) {
  std::sort(set.begin(), set.end());
  Set out;
  for (const Range& r : set) {
    if (!out.empty() && r.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, r.second);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

Set Complement(const Set& set) {
  Set out;
  uint32_t next = 0;
  for (const Range& r : Normalize(set)) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.second + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return out;
}

struct Node {
  enum class Kind { kEmpty, kSet, kConcat, kAlternate, kRepeat };
  Kind kind = Kind::kEmpty;
  Set set;
  std::vector<int> children;
  int min = 0, max = 0;                   // kRepeat; max -1: no bound
  bool at_begin = false, at_end = false;  // an alternative of the whole that says so
};

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  // The root's number, or -1 with status().
  int Parse() {
    const int root = Alternation(0);
    if (status_.ok() && at_ < text_.size()) Fail("a ) without a (");
    return status_.ok() ? root : -1;
  }
  const std::vector<Node>& nodes() const { return nodes_; }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(what, " at byte ", at_));
  }
  bool More() const { return status_.ok() && at_ < text_.size(); }
  bool Eat(absl::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  int New(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size() - 1);
  }

  int Alternation(int depth) {
    if (depth > kMaxRegexDepth) {
      Fail(absl::StrCat("groups nest deeper than ", kMaxRegexDepth));
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
    if (!More()) return atom;
    Node node;
    node.kind = Node::Kind::kRepeat;
    node.children = {atom};
    if (Eat("*")) {
      node.min = 0, node.max = -1;
    } else if (Eat("+")) {
      node.min = 1, node.max = -1;
    } else if (Eat("?")) {
      node.min = 0, node.max = 1;
    } else if (!Counts(&node)) {
      return atom;
    }
    Eat("?");  // lazy: the same texts
    if (More() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) Fail("nothing to repeat");
    return New(std::move(node));
  }

  // {n}, {n,}, {n,m}
  bool Counts(Node* node) {
    if (text_[at_] != '{') return false;
    ++at_;
    node->min = Number();
    node->max = node->min;
    if (Eat(",")) node->max = More() && text_[at_] == '}' ? -1 : Number();
    if (!Eat("}")) Fail("a repetition must be {n}, {n,} or {n,m}");
    if (status_.ok() && node->max != -1 && node->max < node->min) Fail("a repetition's upper count is below the lower");
    return true;
  }

  int Number() {
    int value = 0;
    const size_t begin = at_;
    while (More() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > kMaxRepeat) {
        Fail(absl::StrCat("a repetition of more than ", kMaxRepeat));
        return 0;
      }
    }
    if (at_ == begin) Fail("a repetition without a number (write \\{ for a brace)");
    return value;
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

  // One code point of the pattern.
  uint32_t CodePoint() {
    const uint8_t lead = static_cast<uint8_t>(text_[at_]);
    const int n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (at_ + static_cast<size_t>(n) > text_.size()) {
      Fail("not UTF-8");
      return 0;
    }
    uint32_t code = n == 1 ? lead : lead & (0xff >> (n + 1));
    for (int i = 1; i < n; ++i) code = code << 6 | (static_cast<uint8_t>(text_[at_ + static_cast<size_t>(i)]) & 0x3f);
    at_ += static_cast<size_t>(n);
    return code;
  }

  uint32_t Hex(size_t min, size_t max) {
    uint32_t value = 0;
    size_t n = 0;
    while (n < max && More()) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<uint32_t>(digit);
      ++n, ++at_;
    }
    if (n < min || value > kMaxCodePoint || (value >= 0xd800 && value <= 0xdfff)) Fail("no code point");
    return value;
  }

  static Set Shorthand(char c) {
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
  Set Escape(bool in_class) {
    ++at_;
    if (!More()) {
      Fail("a backslash at the end");
      return {};
    }
    const char c = text_[at_];
    if (Set set = Shorthand(c); !set.empty()) {
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

  Set Class() {
    ++at_;
    const bool negated = Eat("^");
    Set set;
    bool first = true;
    while (More() && (first || text_[at_] != ']')) {
      first = false;
      if (text_.substr(at_, 2) == "[:") {
        Fail("POSIX classes are not supported");
        break;
      }
      Set low = text_[at_] == '\\' ? Escape(true) : Single();
      const bool range = text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]" && at_ + 1 < text_.size();
      if (range && low.size() == 1 && low[0].first == low[0].second) {
        ++at_;
        const Set high = text_[at_] == '\\' ? Escape(true) : Single();
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

  Set Single() {
    const uint32_t code = CodePoint();
    return {{code, code}};
  }

  const absl::string_view text_;
  size_t at_ = 0;
  std::vector<Node> nodes_;
  absl::Status status_;
};

class Emitter {
 public:
  Emitter(Builder* builder, const std::vector<Node>& nodes, const RegexOptions& options)
      : builder_(builder), nodes_(nodes), options_(options) {}

  State Root(State from, int root) {
    const State end = builder_->NewState();
    for (const int child : nodes_[static_cast<size_t>(root)].children) {
      const Node& node = nodes_[static_cast<size_t>(child)];
      State at = builder_->NewState();
      builder_->Empty(from, at);
      if (!options_.whole && !node.at_begin) AddAnything(at);
      at = Emit(at, child);
      if (!options_.whole && !node.at_end) {
        const State tail = builder_->NewState();
        builder_->Empty(at, tail);
        AddAnything(tail);
        at = tail;
      }
      builder_->Empty(at, end);
    }
    return end;
  }

 private:
  State Emit(State from, int index) {
    if (!builder_->ok()) return from;
    const Node& node = nodes_[static_cast<size_t>(index)];
    switch (node.kind) {
      case Node::Kind::kEmpty:
        return from;
      case Node::Kind::kSet: {
        const State end = builder_->NewState();
        AddSet(from, node.set, end);
        return end;
      }
      case Node::Kind::kConcat:
        for (const int child : node.children) from = Emit(from, child);
        return from;
      case Node::Kind::kAlternate: {
        if (node.children.size() == 1) return Emit(from, node.children[0]);
        const State end = builder_->NewState();
        for (const int child : node.children) {
          const State begin = builder_->NewState();
          builder_->Empty(from, begin);
          builder_->Empty(Emit(begin, child), end);
        }
        return end;
      }
      case Node::Kind::kRepeat:
        return EmitRepeat(from, node);
    }
    return from;
  }

  State EmitRepeat(State from, const Node& node) {
    // A state for each round, so that rounds of nothing count too.
    const auto step = [&](State at) {
      const State next = builder_->NewState();
      builder_->Empty(at, next);
      return next;
    };
    for (int i = 0; i < node.min && builder_->ok(); ++i) from = Emit(step(from), node.children[0]);
    const State end = builder_->NewState();
    if (node.max == -1) {
      const State loop = step(from);
      builder_->Empty(Emit(loop, node.children[0]), loop);
      builder_->Empty(loop, end);
      return end;
    }
    builder_->Empty(from, end);
    for (int i = node.min; i < node.max && builder_->ok(); ++i) {
      from = Emit(step(from), node.children[0]);
      builder_->Empty(from, end);
    }
    return end;
  }

  void AddAnything(State loop) { AddSet(loop, {{0, kMaxCodePoint}}, loop); }

  void AddSet(State from, const Set& set, State to) {
    if (!options_.json) {
      for (const Range& r : set) builder_->CodePoints(from, r.first, r.second, to);
      return;
    }
    const auto clip = [&](uint32_t low, uint32_t high) {
      for (const Range& r : set) builder_->CodePoints(from, std::max(low, r.first), std::min(high, r.second), to);
    };
    clip(0x20, '"' - 1);
    clip('"' + 1, '\\' - 1);
    clip('\\' + 1, kMaxCodePoint);
    for (const Range& r : set) {
      for (uint32_t c = r.first; c <= r.second && c <= '\\'; ++c) {
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        AddEscaped(from, c, to);
      }
    }
  }

  void AddEscaped(State from, uint32_t c, State to) {
    constexpr absl::string_view kFrom = "\b\f\n\r\t\"\\", kTo = "bfnrt\"\\";
    std::string text;
    if (const size_t i = kFrom.find(static_cast<char>(c)); i != absl::string_view::npos) {
      text = absl::StrCat("\\", kTo.substr(i, 1));
    } else {
      text = absl::StrCat("\\u00", absl::Hex(c, absl::kZeroPad2));
    }
    builder_->Empty(builder_->Literal(from, text), to);
  }

  Builder* const builder_;
  const std::vector<Node>& nodes_;
  const RegexOptions options_;
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
  return Emitter(builder, parser.nodes(), options).Root(from, root);
}

}  // namespace baton::constraint
