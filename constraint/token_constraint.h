// Which tokens may come next. One object for each constraint and vocabulary, shared by all requests that ask for it: masks
// and states are kept from one to the next, up to a bound, beyond which they are made again.
//
// A Position is a pure function of the tokens that were written so far, so whoever has those can go on anywhere: after a
// preemption, on another worker, behind a hand-over.
//
// Thread contract: one thread at a time (an engine's).
#ifndef BATON_CONSTRAINT_TOKEN_CONSTRAINT_H_
#define BATON_CONSTRAINT_TOKEN_CONSTRAINT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "constraint/automaton.h"
#include "constraint/vocabulary.h"

namespace baton::constraint {

// Tokens with text that may come next.
class TokenMask {
 public:
  // Puts -infinity where a token may not come. Those of `ends` that make no text may come where the text may end.
  void Apply(std::span<float> logits, std::span<const int32_t> ends) const;

  bool may_end() const { return may_end_; }
  int num_tokens() const { return num_tokens_; }
  bool Allows(int32_t id) const;
  size_t memory_bytes() const { return (ids_.capacity() + 2 * bits_.capacity()) * sizeof(int32_t) + sizeof(*this); }

 private:
  friend class TokenConstraint;
  std::shared_ptr<const Vocabulary> vocabulary_;
  bool may_end_ = false;
  int num_tokens_ = 0;
  std::vector<int32_t> ids_;    // ascending, when they are few
  std::vector<uint64_t> bits_;  // else
};

class TokenConstraint {
 public:
  static constexpr size_t kMaxMemoryBytes = 8 << 20;  // of masks and states; one step may go beyond for a moment
  static constexpr int64_t kMaxMaskCost = 4'000'000;  // places of the steps that one mask needs

  class Position {
   private:
    friend class TokenConstraint;
    uint64_t generation = 0;  // 0: before the first token, of no generation
    Automaton::StateId state = Automaton::kStart;
    size_t num_tokens = 0;
  };

  TokenConstraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary);

  // Goes on to behind `tokens`, which begin with those of the call before. INVALID_ARGUMENT when one of them does not fit.
  absl::Status MoveTo(std::span<const int32_t> tokens, Position* position);
  // Lives until the next call. INVALID_ARGUMENT when so many ways of reading the text are open that it would take too
  // long: a property of constraint and text, not of the moment.
  absl::StatusOr<const TokenMask*> Mask(const Position& position);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  size_t memory_bytes() const { return automaton_.memory_bytes() + mask_bytes_; }

 private:
  absl::StatusOr<TokenMask> MakeMask(Automaton::StateId state);
  void ClearIfBig();

  const std::shared_ptr<const Vocabulary> vocabulary_;
  Automaton automaton_;
  uint64_t generation_ = 1;
  absl::flat_hash_map<Automaton::StateId, std::unique_ptr<TokenMask>> masks_;
  size_t mask_bytes_ = 0;
  uint32_t walk_ = 0;
  std::vector<Automaton::StateId> path_;  // scratch, by depth
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_TOKEN_CONSTRAINT_H_
