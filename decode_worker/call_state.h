// The life of one Decode call as a pure table: what each event does in each state.
#ifndef BATON_DECODE_WORKER_CALL_STATE_H_
#define BATON_DECODE_WORKER_CALL_STATE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton::decode_worker {

enum class CallState : uint8_t {
  kReserving,   // waits for room; holds nothing
  kWaitTicket,  // holds room for the whole prompt
  kFetching,    // the transport has the room
  kWaitGo,      // holds the KV; the router has yet to say which choices go on
  kRunning,     // the engine has the KV
  kClosing,     // given up; whoever works for the call has been asked to stop and has not said that it has
  kOver,
};
inline constexpr int kNumCallStates = 7;

enum class CallEvent : uint8_t {
  kRoom,
  kNoRoom,       // or the reservation was cancelled
  kTicket,       // a ticket that is good
  kBadTicket,    // one that is not
  kFetched,
  kFinished,     // the fetch says that the request ended with token 0
  kFetchFailed,  // or was cancelled: nothing can write any more, or what can is in quarantine
  kGo,           // the router's word, or that it is not needed
  kDone,         // the engine is done with it
  kAbandon,      // the caller went away, or its deadline passed
  kLocal,        // instead of asking for room: the engine is to compute the prompt too
};
inline constexpr int kNumCallEvents = 11;

enum class CallAction : uint8_t {
  kNone,
  kAnnounce,      // tell of the room; a ticket that came early is next
  kKeep,          // remember it for later
  kFetch,
  kAwaitGo,       // tell of the KV; a go that came early, or is not needed, is next
  kStart,         // hand the KV to the engine
  kStartLocal,    // hand it the prompt; if the call was given up meanwhile, cancel that
  kCancelEngine,  // its answer comes as kRoom, kNoRoom or kDone
  kCancelFetch,   // its answer comes as kFetched, kFinished or kFetchFailed
  kEnd,           // free what is held and end the stream
  kImpossible,    // a bug: ignored and counted
};

struct CallStep {
  CallState next;
  CallAction action;
  bool operator==(const CallStep&) const = default;
};

// Total: defined for every pair.
CallStep NextCallStep(CallState state, CallEvent event);

absl::string_view Name(CallState state);
absl::string_view Name(CallEvent event);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_CALL_STATE_H_
