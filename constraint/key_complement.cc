#include "constraint/key_complement.h"

#include <algorithm>
#include <map>

namespace baton::constraint {
namespace {

constexpr size_t kMaxNameBytes = 1024;  // recursion goes as deep

struct Node {
  std::map<uint32_t, Node> next;
  bool is_name = false;
};

uint32_t NextCodePoint(const std::string& text, size_t* at) {
  const uint8_t lead = static_cast<uint8_t>(text[(*at)++]);
  const int extra = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  uint32_t code = extra == 0 ? lead : lead & (0x3f >> extra);
  for (int i = 0; i < extra && *at < text.size(); ++i) code = code << 6 | (static_cast<uint8_t>(text[(*at)++]) & 0x3f);
  return code;
}

class Adder {
 public:
  Adder(Builder* builder, State free, State end) : builder_(builder), free_(free), end_(end) {}

  void Add(State at, const Node& node) {
    if (!builder_->ok()) return;
    if (!node.is_name) builder_->Bytes(at, '"', '"', end_);
    uint32_t next = 0x20;
    for (const auto& [code, child] : node.next) {
      if (code < 0x20 || code == '"' || code == '\\') continue;  // needs an escape
      Others(at, next, code);
      const State to = builder_->NewState();
      builder_->CodePoints(at, code, code, to);
      Add(to, child);
      next = code + 1;
    }
    Others(at, next, 0x110000);
  }

  // Code points from `low` up to and without `high`, and then whatever follows.
  void Others(State at, uint32_t low, uint32_t high) {
    const auto part = [&](uint32_t from, uint32_t to) {
      from = std::max(from, low);
      to = std::min(to, high);
      if (from < to) builder_->CodePoints(at, from, to - 1, free_);
    };
    part(0x20, '"');
    part('"' + 1, '\\');
    part('\\' + 1, 0x110000);
  }

 private:
  Builder* const builder_;
  const State free_, end_;
};

}  // namespace

State AddOtherKey(Builder* builder, State from, const std::vector<std::string>& names) {
  Node root;
  for (const std::string& name : names) {
    if (name.size() > kMaxNameBytes) {
      builder->Fail(absl::InvalidArgumentError("a property's name is too long beside additionalProperties"));
      return from;
    }
    Node* node = &root;
    for (size_t at = 0; at < name.size();) node = &node->next[NextCodePoint(name, &at)];
    node->is_name = true;
  }
  const State begin = builder->Literal(from, "\"");
  const State free = builder->NewState(), end = builder->NewState();
  builder->Bytes(free, '"', '"', end);
  Adder adder(builder, free, end);
  adder.Others(free, 0x20, 0x110000);
  adder.Add(begin, root);
  return end;
}

}  // namespace baton::constraint
