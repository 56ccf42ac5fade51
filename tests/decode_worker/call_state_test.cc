#include "decode_worker/call_state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace baton::decode_worker {
namespace {

using S = CallState;
using E = CallEvent;
using A = CallAction;

// Said once more, by meaning: which answers somebody owes the call in each state. Any other of the answers is impossible.
const std::map<S, std::set<E>> kOwed = {
    {S::kReserving, {E::kRoom, E::kNoRoom}},
    {S::kWaitTicket, {}},
    {S::kFetching, {E::kFetched, E::kFinished, E::kFetchFailed}},
    {S::kWaitGo, {}},
    {S::kRunning, {E::kDone}},
    {S::kClosing, {E::kRoom, E::kNoRoom, E::kFetched, E::kFinished, E::kFetchFailed, E::kDone}},
    {S::kOver, {}},
};
const std::set<E> kAnswers = {E::kRoom, E::kNoRoom, E::kFetched, E::kFinished, E::kFetchFailed, E::kDone};

TEST(CallStateTest, EveryPairOfStateAndEvent) {
  const std::map<std::pair<S, E>, CallStep> expected = {
      {{S::kReserving, E::kRoom}, {S::kWaitTicket, A::kAnnounce}},
      {{S::kReserving, E::kNoRoom}, {S::kOver, A::kEnd}},
      {{S::kReserving, E::kTicket}, {S::kReserving, A::kKeep}},
      {{S::kReserving, E::kBadTicket}, {S::kClosing, A::kCancelEngine}},
      {{S::kReserving, E::kGo}, {S::kReserving, A::kKeep}},
      {{S::kReserving, E::kAbandon}, {S::kClosing, A::kCancelEngine}},
      {{S::kWaitTicket, E::kTicket}, {S::kFetching, A::kFetch}},
      {{S::kWaitTicket, E::kBadTicket}, {S::kOver, A::kEnd}},
      {{S::kWaitTicket, E::kGo}, {S::kWaitTicket, A::kKeep}},
      {{S::kWaitTicket, E::kAbandon}, {S::kOver, A::kEnd}},
      {{S::kFetching, E::kFetched}, {S::kWaitGo, A::kAwaitGo}},
      {{S::kFetching, E::kFinished}, {S::kOver, A::kEnd}},
      {{S::kFetching, E::kFetchFailed}, {S::kOver, A::kEnd}},
      {{S::kFetching, E::kGo}, {S::kFetching, A::kKeep}},
      {{S::kFetching, E::kAbandon}, {S::kClosing, A::kCancelFetch}},
      {{S::kWaitGo, E::kGo}, {S::kRunning, A::kStart}},
      {{S::kWaitGo, E::kAbandon}, {S::kOver, A::kEnd}},
      {{S::kReserving, E::kLocal}, {S::kRunning, A::kStartLocal}},
      {{S::kClosing, E::kLocal}, {S::kClosing, A::kStartLocal}},  // given up before the engine knew of it
      {{S::kRunning, E::kDone}, {S::kOver, A::kEnd}},
      {{S::kRunning, E::kAbandon}, {S::kClosing, A::kCancelEngine}},
  };
  for (int s = 0; s < kNumCallStates; ++s) {
    for (int e = 0; e < kNumCallEvents; ++e) {
      const S state = static_cast<S>(s);
      const E event = static_cast<E>(e);
      const CallStep step = NextCallStep(state, event);
      const std::string what = std::string(Name(state)) + " + " + std::string(Name(event));
      if (const auto it = expected.find({state, event}); it != expected.end()) {
        EXPECT_EQ(step, it->second) << what;
      } else if (event == E::kLocal) {
        EXPECT_EQ(step, (CallStep{state, A::kImpossible})) << what;
      } else if (kAnswers.count(event) > 0 && kOwed.at(state).count(event) == 0) {
        EXPECT_EQ(step, (CallStep{state, A::kImpossible})) << what;
      } else if (state == S::kClosing && kAnswers.count(event) > 0) {
        EXPECT_EQ(step, (CallStep{S::kOver, A::kEnd})) << what;
      } else {
        EXPECT_EQ(step, (CallStep{state, A::kNone})) << what;
      }
    }
  }
}

TEST(CallStateTest, EveryStateLeadsToItsEndAfterAnAbandon) {
  for (int s = 0; s < kNumCallStates; ++s) {
    CallState state = NextCallStep(static_cast<S>(s), E::kAbandon).next;
    EXPECT_TRUE(state == S::kOver || state == S::kClosing) << s;
  }
}

}  // namespace
}  // namespace baton::decode_worker
