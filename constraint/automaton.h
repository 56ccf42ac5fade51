// Runs a grammar over bytes. A state is the set of places where the grammar may be, each with the calls it must return
// from; states and the steps between them are made when they are first needed, and kept.
//
// What a step leads to depends on nothing but the grammar and the bytes. Clear() forgets the states that were made.
//
// Thread contract: one thread at a time.
#ifndef BATON_CONSTRAINT_AUTOMATON_H_
#define BATON_CONSTRAINT_AUTOMATON_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "constraint/grammar.h"

namespace baton::constraint {

class Automaton {
 public:
  using StateId = uint32_t;
  static constexpr StateId kDead = 0;   // nothing that fits can follow
  static constexpr StateId kStart = 1;
  static constexpr size_t kMaxPlaces = 16384;  // of one state

  explicit Automaton(std::shared_ptr<const Grammar> grammar);

  // Bytes that are of class 0, and those that fit nowhere, lead to kDead.
  StateId Next(StateId state, uint8_t byte) {
    const StateId next = next_[state * num_classes_ + static_cast<size_t>(grammar_->ClassOf(byte))];
    return next != kUnknown ? next : Step(state, byte);
  }
  // Next, which also adds what the step costs to make (places of the state) to `cost`, once in each walk. That does not
  // depend on whether it was made before. A walk's number is not 0 and not that of another walk.
  StateId NextCounted(StateId state, uint8_t byte, uint32_t walk, int64_t* cost) {
    uint32_t& last = last_walk_[state * num_classes_ + static_cast<size_t>(grammar_->ClassOf(byte))];
    if (last != walk) *cost += static_cast<int64_t>(num_places(state)) + 1;
    last = walk;
    return Next(state, byte);
  }
  bool MayEnd(StateId state) const { return infos_[state].may_end; }
  // Places of the state; more than kMaxPlaces when it had too many, and then nothing can follow.
  size_t num_places(StateId state) const { return infos_[state].overflow ? kMaxPlaces + 1 : infos_[state].count; }

  size_t num_states() const { return infos_.size(); }
  size_t memory_bytes() const;  // about
  void Clear();

 private:
  static constexpr StateId kUnknown = UINT32_MAX;
  using Stack = uint32_t;  // 0: nothing to return from

  struct Place {
    State state;
    Stack stack;
    auto operator<=>(const Place&) const = default;
  };
  struct Frame {
    State back;
    Stack below;
    uint16_t depth;
  };
  struct Info {
    uint32_t first, count;  // in places_
    bool may_end, overflow;
  };

  StateId Step(StateId state, uint8_t byte);
  // Adds a place and all that can be got to from it without a byte.
  void Reach(State state, Stack stack);
  void Visit(State state, Stack stack);
  Stack Push(State back, Stack below);
  int Depth(Stack stack) const { return stack == 0 ? 0 : frames_[stack].depth; }
  // The state made of found_.
  StateId Intern();
  StateId NewState(std::span<const Place> places, bool may_end, bool overflow);

  const std::shared_ptr<const Grammar> grammar_;
  const size_t num_classes_;
  std::vector<StateId> next_;         // [state, class]
  std::vector<uint32_t> last_walk_;  // [state, class]: the last that took this step
  std::vector<Info> infos_;
  std::vector<Place> places_;
  absl::flat_hash_map<uint64_t, std::vector<StateId>> by_hash_;
  std::vector<Frame> frames_;
  absl::flat_hash_map<uint64_t, Stack> stacks_;  // by back << 32 | below
  // Scratch of one step.
  std::vector<Place> open_, found_;
  absl::flat_hash_set<uint64_t> seen_;
  bool may_end_ = false;
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_AUTOMATON_H_
