#include "constraint/expression.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::constraint {

CodePointSet Normalize(CodePointSet set) {
  std::sort(set.begin(), set.end());
  CodePointSet out;
  for (const CodePointRange& r : set) {
    if (!out.empty() && r.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, r.second);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

CodePointSet Complement(const CodePointSet& set) {
  CodePointSet out;
  uint32_t next = 0;
  for (const CodePointRange& r : Normalize(set)) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.second + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return out;
}

void ExpressionReader::Fail(absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(what, " at byte ", at_));
}

bool ExpressionReader::Eat(absl::string_view what) {
  if (text_.substr(at_, what.size()) != what) return false;
  at_ += what.size();
  return true;
}

int ExpressionReader::New(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<int>(nodes_.size() - 1);
}

int ExpressionReader::NewSet(CodePointSet set) {
  Node node;
  node.kind = Node::Kind::kSet;
  node.set = std::move(set);
  return New(std::move(node));
}

uint32_t ExpressionReader::CodePoint() {
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

uint32_t ExpressionReader::Hex(size_t min, size_t max) {
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

int ExpressionReader::Repeated(int atom) {
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
  return New(std::move(node));
}

// {n}, {n,}, {n,m}
bool ExpressionReader::Counts(Node* node) {
  if (text_[at_] != '{') return false;
  ++at_;
  node->min = Number();
  node->max = node->min;
  if (Eat(",")) node->max = More() && text_[at_] == '}' ? -1 : Number();
  if (!Eat("}")) Fail("a repetition must be {n}, {n,} or {n,m}");
  if (status_.ok() && node->max != -1 && node->max < node->min) Fail("a repetition's upper count is below the lower");
  return true;
}

int ExpressionReader::Number() {
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

namespace {

class Emitter {
 public:
  Emitter(Builder* builder, const std::vector<Node>& nodes, bool json) : builder_(builder), nodes_(nodes), json_(json) {}
  State Emit(State from, int index);

 private:
  State EmitRepeat(State from, const Node& node);

  Builder* const builder_;
  const std::vector<Node>& nodes_;
  const bool json_;
};

State Emitter::Emit(State from, int index) {
  if (!builder_->ok()) return from;
  const Node& node = nodes_[static_cast<size_t>(index)];
  switch (node.kind) {
    case Node::Kind::kEmpty:
      return from;
    case Node::Kind::kSet: {
      const State end = builder_->NewState();
      EmitSet(builder_, from, node.set, end, json_);
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
    case Node::Kind::kCall:
      return builder_->Call(from, node.rule);
  }
  return from;
}

State Emitter::EmitRepeat(State from, const Node& node) {
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

void EmitEscaped(Builder* builder, State from, uint32_t c, State to) {
  constexpr absl::string_view kFrom = "\b\f\n\r\t\"\\", kTo = "bfnrt\"\\";
  std::string text;
  if (const size_t i = kFrom.find(static_cast<char>(c)); i != absl::string_view::npos) {
    text = absl::StrCat("\\", kTo.substr(i, 1));
  } else {
    text = absl::StrCat("\\u00", absl::Hex(c, absl::kZeroPad2));
  }
  builder->Empty(builder->Literal(from, text), to);
}

}  // namespace

void EmitSet(Builder* builder, State from, const CodePointSet& set, State to, bool json) {
  if (!json) {
    for (const CodePointRange& r : set) builder->CodePoints(from, r.first, r.second, to);
    return;
  }
  const auto clip = [&](uint32_t low, uint32_t high) {
    for (const CodePointRange& r : set) builder->CodePoints(from, std::max(low, r.first), std::min(high, r.second), to);
  };
  clip(0x20, '"' - 1);
  clip('"' + 1, '\\' - 1);
  clip('\\' + 1, kMaxCodePoint);
  for (const CodePointRange& r : set) {
    for (uint32_t c = r.first; c <= r.second && c <= '\\'; ++c) {
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      EmitEscaped(builder, from, c, to);
    }
  }
}

State Emit(Builder* builder, const std::vector<Node>& nodes, int node, State from, bool json) {
  return Emitter(builder, nodes, json).Emit(from, node);
}

}  // namespace baton::constraint
