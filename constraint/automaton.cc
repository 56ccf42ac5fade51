#include "constraint/automaton.h"

#include <algorithm>

namespace baton::constraint {

Automaton::Automaton(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), num_classes_(static_cast<size_t>(grammar_->num_classes())) {
  Clear();
}

void Automaton::Clear() {
  next_.clear();
  last_walk_.clear();
  infos_.clear();
  places_.clear();
  by_hash_.clear();
  frames_.assign(1, Frame{});
  stacks_.clear();
  NewState({}, false, false);  // kDead
  found_.clear();
  seen_.clear();
  may_end_ = false;
  Reach(grammar_->begin(0), 0);
  // A start from which nothing follows would be kDead; the grammar's own check has excluded that.
  const bool overflow = seen_.size() > kMaxPlaces;
  if (overflow) found_.clear();
  NewState(found_, may_end_ && !overflow, overflow);
}

size_t Automaton::memory_bytes() const {
  return (next_.capacity() + last_walk_.capacity()) * sizeof(StateId) + infos_.capacity() * sizeof(Info) +
         places_.capacity() * sizeof(Place) + by_hash_.size() * 64 + frames_.capacity() * sizeof(Frame) +
         stacks_.capacity() * 16;
}

Automaton::StateId Automaton::NewState(std::span<const Place> places, bool may_end, bool overflow) {
  const auto id = static_cast<StateId>(infos_.size());
  infos_.push_back({static_cast<uint32_t>(places_.size()), static_cast<uint32_t>(places.size()), may_end, overflow});
  places_.insert(places_.end(), places.begin(), places.end());
  next_.resize(next_.size() + num_classes_, places.empty() ? kDead : kUnknown);
  next_[id * num_classes_] = kDead;
  last_walk_.resize(next_.size(), 0);
  return id;
}

Automaton::Stack Automaton::Push(State back, Stack below) {
  const auto [it, inserted] = stacks_.try_emplace(uint64_t{back} << 32 | below, 0);
  if (inserted) {
    it->second = static_cast<Stack>(frames_.size());
    frames_.push_back({back, below, static_cast<uint16_t>(Depth(below) + 1)});
  }
  return it->second;
}

void Automaton::Visit(State state, Stack stack) {
  const int height = grammar_->height(state);
  if (height == Grammar::kNever || height + Depth(stack) > kMaxCallDepth) return;
  if (seen_.size() <= kMaxPlaces && seen_.insert(uint64_t{state} << 32 | stack).second) open_.push_back({state, stack});
}

void Automaton::Reach(State state, Stack stack) {
  Visit(state, stack);
  while (!open_.empty()) {
    const Place place = open_.back();
    open_.pop_back();
    if (grammar_->HasBytes(place.state)) found_.push_back(place);
    if (grammar_->IsEnd(place.state)) {
      if (place.stack == 0) {
        may_end_ = true;
      } else {
        const Frame frame = frames_[place.stack];
        Visit(frame.back, frame.below);
      }
    }
    for (const Edge& edge : grammar_->edges(place.state)) {
      if (edge.kind == Edge::Kind::kEmpty) Visit(edge.target, place.stack);
      if (edge.kind != Edge::Kind::kCall) continue;
      const int depth = Depth(place.stack);
      const int back = grammar_->height(edge.target), called = grammar_->height(grammar_->begin(edge.rule));
      if (std::max(back, called + 1) + depth > kMaxCallDepth) continue;  // could not be completed
      Visit(grammar_->begin(edge.rule), Push(edge.target, place.stack));
    }
  }
}

Automaton::StateId Automaton::Step(StateId state, uint8_t byte) {
  found_.clear();
  seen_.clear();
  may_end_ = false;
  const int byte_class = grammar_->ClassOf(byte);
  const uint8_t sample = grammar_->ByteOf(byte_class);
  for (uint32_t i = 0; i < infos_[state].count; ++i) {
    const Place place = places_[infos_[state].first + i];
    for (const Edge& edge : grammar_->edges(place.state)) {
      if (edge.kind == Edge::Kind::kBytes && edge.low <= sample && sample <= edge.high) Reach(edge.target, place.stack);
    }
  }
  const StateId next = Intern();
  next_[state * num_classes_ + static_cast<size_t>(byte_class)] = next;
  return next;
}

Automaton::StateId Automaton::Intern() {
  const bool overflow = seen_.size() > kMaxPlaces;
  if (overflow) {
    found_.clear();
    may_end_ = false;
  } else if (found_.empty() && !may_end_) {
    return kDead;
  }
  std::sort(found_.begin(), found_.end());
  uint64_t hash = overflow ? 3 : may_end_ ? 2 : 1;
  for (const Place& place : found_) {
    hash = (hash ^ (uint64_t{place.state} << 32 | place.stack)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  std::vector<StateId>& same = by_hash_[hash];
  for (const StateId id : same) {
    const Info& info = infos_[id];
    if (info.may_end == may_end_ && info.overflow == overflow && info.count == found_.size() &&
        std::equal(found_.begin(), found_.end(), places_.begin() + info.first)) {
      return id;
    }
  }
  const StateId id = NewState(found_, may_end_, overflow);
  same.push_back(id);
  return id;
}

}  // namespace baton::constraint
