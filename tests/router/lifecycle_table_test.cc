#include "router/lifecycle_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace baton::router {
namespace {

State StateAt(size_t i) { return static_cast<State>(i); }
Event EventAt(size_t i) { return static_cast<Event>(i); }

TEST(LifecycleTableTest, EveryPairHasAnEntryAndEveryNameIsItsOwn) {
  std::set<std::string> states, events;
  for (size_t s = 0; s < kNumStates; ++s) {
    EXPECT_TRUE(states.insert(std::string(Name(StateAt(s)))).second);
    for (size_t e = 0; e < kNumEvents; ++e) {
      const Action action = Lookup(StateAt(s), EventAt(e));
      EXPECT_LE(static_cast<int>(action), static_cast<int>(Action::kAbortStop));
      EXPECT_FALSE(Name(action).empty()) << Name(StateAt(s)) << " " << Name(EventAt(e));
    }
  }
  for (size_t e = 0; e < kNumEvents; ++e) EXPECT_TRUE(events.insert(std::string(Name(EventAt(e)))).second);
  EXPECT_EQ(Name(State::kDone), "done");
  EXPECT_EQ(Name(Event::kStop), "stop");
  EXPECT_EQ(Name(Action::kAbortStop), "abort_stop");
}

TEST(LifecycleTableTest, NothingMovesADoneRequest) {
  for (size_t e = 0; e < kNumEvents; ++e) {
    EXPECT_EQ(Lookup(State::kDone, EventAt(e)), Action::kIgnore) << Name(EventAt(e));
  }
}

TEST(LifecycleTableTest, EveryOpenRequestCanBeEndedFromOutside) {
  for (size_t s = 0; s + 1 < kNumStates; ++s) {
    EXPECT_EQ(Lookup(StateAt(s), Event::kClientGone), Action::kAbortGone);
    EXPECT_EQ(Lookup(StateAt(s), Event::kDeadline), Action::kAbortLate);
    EXPECT_EQ(Lookup(StateAt(s), Event::kStop), Action::kAbortStop);
  }
}

TEST(LifecycleTableTest, NothingDecodeSaysIsLostWhilePrefillIsNotDone) {
  for (Event e : {Event::kFetched, Event::kDecodeToken, Event::kDecodeDone, Event::kDecodeEnded}) {
    EXPECT_EQ(Lookup(State::kPrefilling, e), Action::kHold) << Name(e);
  }
}

TEST(LifecycleTableTest, AStreamThatEndsIsAlwaysAnswered) {
  // In the state that waits for a stream neither of its ends is ignored: else the request would hang.
  for (Event e : {Event::kPrefillEnded, Event::kPrefillFailed}) {
    EXPECT_NE(Lookup(State::kPrefilling, e), Action::kIgnore);
  }
  for (State s : {State::kReserving, State::kPrefilling, State::kHandover, State::kLocal, State::kDecoding}) {
    for (Event e : {Event::kDecodeEnded, Event::kDecodeFailed}) EXPECT_NE(Lookup(s, e), Action::kIgnore);
  }
  EXPECT_NE(Lookup(State::kHandover, Event::kPrefillFailed), Action::kIgnore);
  EXPECT_NE(Lookup(State::kBackoff, Event::kBackoffOver), Action::kIgnore);
  EXPECT_NE(Lookup(State::kPlacing, Event::kUnplaced), Action::kIgnore);
}

}  // namespace
}  // namespace baton::router
