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
  kPrefilling,  // the prefill stream is open, no result yet
  kHandover,    // the decode worker has the ticket and has not said that the KV arrived: the router owns the ticket
  kDecoding,    // the KV arrived, tokens flow
  kBackoff,     // a worker failed; waiting a moment before the next attempt
  kDone,        // the client has its status
};
inline constexpr size_t kNumStates = 7;

enum class Event {
  kAdmitted,  // valid; prompt tokenized
  kRejected,  // not valid, or the router takes no more
  kPlaced,
  kUnplaced,  // no worker; carries the status
  kPrefillToken,
  kPrefilled,      // result of the prefill, with the ticket if some choice goes on
  kPrefillEnded,   // stream ended with OK
  kPrefillFailed,  // stream ended otherwise, or the worker is gone
  kFetched,        // the ticket is redeemed
  kDecodeToken,
  kDecodeDone,
  kDecodeEnded,
  kDecodeFailed,
  kBackoffOver,
  kClientGone,
  kDeadline,
  kStop,  // the router stops at once
};
inline constexpr size_t kNumEvents = 17;

enum class Action {
  kIgnore,  // can happen late and means nothing any more
  kBug,     // cannot happen: the request fails with INTERNAL and everything is given back
  kAdmit,   // Started to the client, ask for a placement
  kReject,  // status to the client
  kBeginPrefill,
  kGiveUp,    // status to the client
  kToken,     // forward index == next, compare replayed ones, match stop strings
  kHandOver,  // start decode with the ticket, or finish when no choice goes on
  kMissing,   // the stream ended before its result: as a failure
  kRedeem,    // the ticket is the decode worker's now
  kNoteDone,
  kConclude,  // Summary, OK
  kFailOver,  // give everything back, then retry elsewhere or fail with the status
  kPlaceAgain,
  kReturn,     // a ticket that came too late: give it back
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
