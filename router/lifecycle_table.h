// The states of one request in the router, what can happen in each, and what then is done: one table, so that no pair
// is forgotten. tests/router/lifecycle_table_test.cc checks its shape.
#ifndef BATON_ROUTER_LIFECYCLE_TABLE_H_
#define BATON_ROUTER_LIFECYCLE_TABLE_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace baton::router {

enum class State {
  kReceived,    // not yet validated and tokenized
  kPlacing,     // waiting for a pair of workers
  kReserving,   // the decode call is open and waits for room; nothing is spent on prefill yet
  kPrefilling,  // both calls are open: the prompt is computed, and its KV moves as it comes
  kHandover,    // token 0 of every choice is here; the decode worker has not said that the KV is complete
  kLocal,       // no prefill worker takes part: the decode worker computes the prompt, token 0 is not all here
  kDecoding,    // it has the KV, tokens flow
  kBackoff,     // a worker failed; waiting a moment before the next attempt
  kDone,        // the client has its status
};
inline constexpr size_t kNumStates = 9;

enum class Event {
  kAdmitted,  // valid; prompt tokenized
  kRejected,  // not valid, or the router takes no more
  kPlaced,
  kUnplaced,  // no worker; carries the status
  kTicket,    // the first chunk is scheduled
  kPrefillToken,
  kPrefilled,      // result of the prefill
  kPrefillEnded,   // stream ended with OK: the KV was fetched, or there was none
  kPrefillFailed,  // stream ended otherwise, or the worker is gone
  kReserved,       // there is room for the whole prompt
  kFetched,        // the KV is complete
  kDecodeToken,
  kDecodeDone,
  kDecodeEnded,
  kDecodeFailed,
  kLocalPrefilled,  // the decode worker computed the prompt itself
  kBackoffOver,
  kClientGone,
  kDeadline,
  kStop,  // the router stops at once
};
inline constexpr size_t kNumEvents = 20;

enum class Action {
  kIgnore,  // can happen late and means nothing any more
  kBug,     // cannot happen: the request fails with INTERNAL and everything is given back
  kAdmit,   // Started to the client, ask for a placement
  kReject,  // status to the client
  kReserve,       // ask the decode worker for room; without one, prefill at once; without a prefill worker, ask it for all
  kBeginPrefill,
  kGiveUp,    // status to the client
  kPresent,   // the ticket goes to the decode worker
  kToken,     // forward index == next, compare replayed ones, match stop strings
  kHold,      // decode was faster than prefill's last words: kept until those are here
  kHandOver,  // tell decode to go on, or finish when no choice does
  kMissing,   // the stream ended before its result: as a failure
  kRedeem,    // compare the first tokens that came with the KV
  kGoOn,      // as after a hand-over
  kNoteDone,
  kConclude,  // Summary, OK
  kFailOver,  // cancel both calls, then retry elsewhere or fail with the status
  kPlaceAgain,
  kAbortGone,  // CANCELLED
  kAbortLate,  // DEADLINE_EXCEEDED
  kAbortStop,  // UNAVAILABLE
};

Action Lookup(State state, Event event);
absl::string_view Name(State state);
absl::string_view Name(Event event);
absl::string_view Name(Action action);

}  // namespace baton::router

#endif  // BATON_ROUTER_LIFECYCLE_TABLE_H_
