#include "decode_worker/call_state.h"

namespace baton::decode_worker {
namespace {

using S = CallState;
using A = CallAction;

// clang-format off
constexpr CallStep kTable[kNumCallStates][kNumCallEvents] = {
    // kRoom, kNoRoom, kTicket, kBadTicket, kFetched,
    // kFinished, kFetchFailed, kGo, kDone, kAbandon, kLocal
    /* kReserving */
    {{S::kWaitTicket, A::kAnnounce}, {S::kOver, A::kEnd}, {S::kReserving, A::kKeep}, {S::kClosing, A::kCancelEngine},
     {S::kReserving, A::kImpossible}, {S::kReserving, A::kImpossible}, {S::kReserving, A::kImpossible},
     {S::kReserving, A::kKeep}, {S::kReserving, A::kImpossible}, {S::kClosing, A::kCancelEngine},
     {S::kRunning, A::kStartLocal}},
    /* kWaitTicket */
    {{S::kWaitTicket, A::kImpossible}, {S::kWaitTicket, A::kImpossible}, {S::kFetching, A::kFetch},
     {S::kOver, A::kEnd}, {S::kWaitTicket, A::kImpossible}, {S::kWaitTicket, A::kImpossible},
     {S::kWaitTicket, A::kImpossible}, {S::kWaitTicket, A::kKeep}, {S::kWaitTicket, A::kImpossible},
     {S::kOver, A::kEnd}, {S::kWaitTicket, A::kImpossible}},
    /* kFetching */
    {{S::kFetching, A::kImpossible}, {S::kFetching, A::kImpossible}, {S::kFetching, A::kNone}, {S::kFetching, A::kNone},
     {S::kWaitGo, A::kAwaitGo}, {S::kOver, A::kEnd}, {S::kOver, A::kEnd}, {S::kFetching, A::kKeep},
     {S::kFetching, A::kImpossible}, {S::kClosing, A::kCancelFetch}, {S::kFetching, A::kImpossible}},
    /* kWaitGo */
    {{S::kWaitGo, A::kImpossible}, {S::kWaitGo, A::kImpossible}, {S::kWaitGo, A::kNone}, {S::kWaitGo, A::kNone},
     {S::kWaitGo, A::kImpossible}, {S::kWaitGo, A::kImpossible}, {S::kWaitGo, A::kImpossible}, {S::kRunning, A::kStart},
     {S::kWaitGo, A::kImpossible}, {S::kOver, A::kEnd}, {S::kWaitGo, A::kImpossible}},
    /* kRunning */
    {{S::kRunning, A::kImpossible}, {S::kRunning, A::kImpossible}, {S::kRunning, A::kNone}, {S::kRunning, A::kNone},
     {S::kRunning, A::kImpossible}, {S::kRunning, A::kImpossible}, {S::kRunning, A::kImpossible},
     {S::kRunning, A::kNone}, {S::kOver, A::kEnd}, {S::kClosing, A::kCancelEngine}, {S::kRunning, A::kImpossible}},
    /* kClosing */
    {{S::kOver, A::kEnd}, {S::kOver, A::kEnd}, {S::kClosing, A::kNone}, {S::kClosing, A::kNone}, {S::kOver, A::kEnd},
     {S::kOver, A::kEnd}, {S::kOver, A::kEnd}, {S::kClosing, A::kNone}, {S::kOver, A::kEnd}, {S::kClosing, A::kNone},
     {S::kClosing, A::kStartLocal}},
    /* kOver */
    {{S::kOver, A::kImpossible}, {S::kOver, A::kImpossible}, {S::kOver, A::kNone}, {S::kOver, A::kNone},
     {S::kOver, A::kImpossible}, {S::kOver, A::kImpossible}, {S::kOver, A::kImpossible}, {S::kOver, A::kNone},
     {S::kOver, A::kImpossible}, {S::kOver, A::kNone}, {S::kOver, A::kImpossible}},
};
// clang-format on

}  // namespace

CallStep NextCallStep(CallState state, CallEvent event) {
  return kTable[static_cast<int>(state)][static_cast<int>(event)];
}

absl::string_view Name(CallState state) {
  constexpr const char* kNames[kNumCallStates] = {"reserving", "wait_ticket", "fetching", "wait_go",
                                                  "running",   "closing",     "over"};
  return kNames[static_cast<int>(state)];
}

absl::string_view Name(CallEvent event) {
  constexpr const char* kNames[kNumCallEvents] = {"room",     "no_room",      "ticket", "bad_ticket", "fetched",
                                                  "finished", "fetch_failed", "go",     "done",       "abandon",
                                                  "local"};
  return kNames[static_cast<int>(event)];
}

}  // namespace baton::decode_worker
