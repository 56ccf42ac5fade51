// What a constraint compiles to: a recursive transition network over bytes. Each rule is a small automaton without
// determinism whose edges take a byte of a range, take nothing, or call another rule and go on where that ends. Regular
// expressions need one rule; JSON's nesting and a schema's references are calls.
//
// Bounded: states and edges (kMaxGrammarStates), nesting of calls (kMaxCallDepth). Every state knows how deep calls must
// nest at least to get to its rule's end (height), so that whoever runs the network can leave out whatever could not be
// completed within the bound: there are no dead ends.
//
// Thread contract: Builder is one thread's; Grammar is immutable.
#ifndef BATON_CONSTRAINT_GRAMMAR_H_
#define BATON_CONSTRAINT_GRAMMAR_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::constraint {

inline constexpr size_t kMaxGrammarStates = 50'000;
inline constexpr int kMaxCallDepth = 64;

using ByteSet = std::bitset<256>;
using State = uint32_t;
using Rule = uint32_t;

struct Edge {
  enum class Kind : uint8_t { kEmpty, kBytes, kCall };
  Kind kind;
  uint8_t low = 0, high = 0;  // kBytes
  Rule rule = 0;              // kCall
  State target = 0;
};

class Grammar {
 public:
  static constexpr uint16_t kNever = UINT16_MAX;

  std::span<const Edge> edges(State state) const {
    return std::span(edges_).subspan(first_edge_[state], first_edge_[state + 1] - first_edge_[state]);
  }
  State begin(Rule rule) const { return begins_[rule]; }
  bool IsEnd(State state) const { return is_end_[state]; }  // of its rule
  bool HasBytes(State state) const { return has_bytes_[state]; }
  uint16_t height(State state) const { return heights_[state]; }  // kNever: the end cannot be reached

  // Bytes that no edge tells apart are of one class. Class 0 is taken by no edge.
  int num_classes() const { return num_classes_; }
  int ClassOf(uint8_t byte) const { return class_of_[byte]; }
  uint8_t ByteOf(int byte_class) const { return byte_of_[byte_class]; }

 private:
  friend class Builder;
  std::vector<uint32_t> first_edge_;
  std::vector<Edge> edges_;
  std::vector<State> begins_;
  std::vector<bool> is_end_, has_bytes_;
  std::vector<uint16_t> heights_;
  int num_classes_ = 1;
  std::array<uint8_t, 256> class_of_ = {};
  std::array<uint8_t, 256> byte_of_ = {};
};

// Too many states or a Fail() make everything after it a no-op; Finish says what happened first.
class Builder {
 public:
  Builder() = default;

  // A state that nothing leads to; the functions below that return one lead to it from `from`.
  State NewState();
  void Empty(State from, State to) { Add(from, {Edge::Kind::kEmpty, 0, 0, 0, to}); }
  void Bytes(State from, uint8_t low, uint8_t high, State to) { Add(from, {Edge::Kind::kBytes, low, high, 0, to}); }
  void Call(State from, Rule rule, State to) { Add(from, {Edge::Kind::kCall, 0, 0, rule, to}); }

  State Literal(State from, absl::string_view text);
  State Call(State from, Rule rule);
  // Code points low to high in UTF-8; surrogates are left out.
  void CodePoints(State from, uint32_t low, uint32_t high, State to);
  // One of `texts`, which share their beginnings.
  State OneOf(State from, const std::vector<std::string>& texts);

  // Rule 0 is the one that the whole text must match. Its end must be said with End before Finish.
  Rule NewRule();
  State begin(Rule rule) const { return begins_[rule]; }
  void End(State state) { if (ok()) is_end_[state] = true; }

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) { if (ok()) status_ = std::move(status); }
  // Puts "<place>: " before the error's message.
  void Locate(absl::string_view place);

  // Only `spellable` bytes may be written. RESOURCE_EXHAUSTED when it became too big, INVALID_ARGUMENT when a rule calls
  // itself before it takes a byte, or when no text at all fits.
  absl::StatusOr<std::shared_ptr<const Grammar>> Finish(const ByteSet& spellable);

 private:
  void Add(State from, const Edge& edge);
  void ByteSequence(State from, std::span<const std::pair<uint8_t, uint8_t>> ranges, State to);
  absl::Status CheckLeftCalls() const;
  void FillClasses(const ByteSet& spellable, Grammar* grammar) const;
  void FillHeights(Grammar* grammar) const;

  absl::Status status_;
  std::vector<std::vector<Edge>> states_;
  size_t num_edges_ = 0;
  std::vector<bool> is_end_;
  std::vector<State> begins_;
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_GRAMMAR_H_
