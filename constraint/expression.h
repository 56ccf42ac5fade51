// Expressions over code points, as regular expressions and grammars are made of: how they are kept between parsing and the
// automaton, and what their two syntaxes share.
//
// Thread contract: one thread's.
#ifndef BATON_CONSTRAINT_EXPRESSION_H_
#define BATON_CONSTRAINT_EXPRESSION_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "constraint/grammar.h"

namespace baton::constraint {

inline constexpr uint32_t kMaxCodePoint = 0x10ffff;
inline constexpr int kMaxRepeat = 1000;
inline constexpr int kMaxExpressionDepth = 64;  // of groups

using CodePointRange = std::pair<uint32_t, uint32_t>;
using CodePointSet = std::vector<CodePointRange>;
// Ascending, apart.
CodePointSet Normalize(CodePointSet set);
CodePointSet Complement(const CodePointSet& set);

struct Node {
  enum class Kind { kEmpty, kSet, kConcat, kAlternate, kRepeat, kCall };
  Kind kind = Kind::kEmpty;
  CodePointSet set;
  std::vector<int> children;
  int min = 0, max = 0;                   // kRepeat; max -1: no bound
  Rule rule = 0;                          // kCall
  bool at_begin = false, at_end = false;  // an alternative of a whole regular expression that says so
};

// The parts of a parser that do not depend on the syntax. After Fail nothing is read.
class ExpressionReader {
 public:
  const std::vector<Node>& nodes() const { return nodes_; }
  const absl::Status& status() const { return status_; }

 protected:
  explicit ExpressionReader(absl::string_view text) : text_(text) {}
  void Fail(absl::string_view what);  // INVALID_ARGUMENT with the byte offset
  bool More() const { return status_.ok() && at_ < text_.size(); }
  char Peek() const { return text_[at_]; }
  bool Eat(absl::string_view what);
  int New(Node node);
  int NewSet(CodePointSet set);
  // One code point of the text.
  uint32_t CodePoint();
  // From `min` to `max` hexadecimal digits that are a code point.
  uint32_t Hex(size_t min, size_t max);
  // *, +, ?, {n}, {n,} or {n,m} behind `atom`; `atom` itself when there is none.
  int Repeated(int atom);

  const absl::string_view text_;
  size_t at_ = 0;
  std::vector<Node> nodes_;
  absl::Status status_;

 private:
  bool Counts(Node* node);
  int Number();
};

// Adds what a node stands for behind `from`, and returns where it ends. `json`: within a JSON string, so that quotes, backslashes
// and control characters are escaped.
State Emit(Builder* builder, const std::vector<Node>& nodes, int node, State from, bool json);
// One code point of `set`.
void EmitSet(Builder* builder, State from, const CodePointSet& set, State to, bool json);

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_EXPRESSION_H_
