#include "router/lifecycle_table.h"

#include <array>

namespace baton::router {
namespace {

using enum Action;
using Row = std::array<Action, kNumStates>;

// A stream's events after its request moved on are ignored, not bugs: cancelling a call and its last message cross on
// the wire. Events of a former attempt never get here (they carry its epoch).
// clang-format off
constexpr std::array<Row, kNumEvents> kTable = {{
    //                   kReceived      kPlacing       kReserving     kPrefilling    kHandover      kLocal         kDecoding      kBackoff       kDone
    /*kAdmitted*/       {kAdmit,        kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kIgnore},
    /*kRejected*/       {kReject,       kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kIgnore},
    /*kPlaced*/         {kBug,          kReserve,      kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kIgnore},
    /*kUnplaced*/       {kBug,          kGiveUp,       kBug,          kBug,          kBug,          kBug,          kBug,          kBug,          kIgnore},
    /*kTicket*/         {kBug,          kIgnore,       kBug,          kPresent,      kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore},
    /*kPrefillToken*/   {kBug,          kIgnore,       kBug,          kToken,        kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore},
    /*kPrefilled*/      {kBug,          kIgnore,       kBug,          kHandOver,     kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore},
    /*kPrefillEnded*/   {kBug,          kIgnore,       kBug,          kMissing,      kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore},
    /*kPrefillFailed*/  {kBug,          kIgnore,       kBug,          kFailOver,     kFailOver,     kIgnore,       kIgnore,       kIgnore,       kIgnore},
    /*kReserved*/       {kBug,          kIgnore,       kBeginPrefill, kIgnore,       kIgnore,       kMissing,      kIgnore,       kIgnore,       kIgnore},
    /*kFetched*/        {kBug,          kIgnore,       kMissing,      kHold,         kRedeem,       kMissing,      kIgnore,       kIgnore,       kIgnore},
    /*kDecodeToken*/    {kBug,          kIgnore,       kMissing,      kHold,         kMissing,      kToken,        kToken,        kIgnore,       kIgnore},
    /*kDecodeDone*/     {kBug,          kIgnore,       kMissing,      kHold,         kMissing,      kMissing,      kNoteDone,     kIgnore,       kIgnore},
    /*kDecodeEnded*/    {kBug,          kIgnore,       kMissing,      kHold,         kMissing,      kMissing,      kConclude,     kIgnore,       kIgnore},
    /*kDecodeFailed*/   {kBug,          kIgnore,       kFailOver,     kFailOver,     kFailOver,     kFailOver,     kFailOver,     kIgnore,       kIgnore},
    /*kLocalPrefilled*/ {kBug,          kIgnore,       kMissing,      kMissing,      kMissing,      kGoOn,         kIgnore,       kIgnore,       kIgnore},
    /*kBackoffOver*/    {kBug,          kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore,       kIgnore,       kPlaceAgain,   kIgnore},
    /*kClientGone*/     {kAbortGone,    kAbortGone,    kAbortGone,    kAbortGone,    kAbortGone,    kAbortGone,    kAbortGone,    kAbortGone,    kIgnore},
    /*kDeadline*/       {kAbortLate,    kAbortLate,    kAbortLate,    kAbortLate,    kAbortLate,    kAbortLate,    kAbortLate,    kAbortLate,    kIgnore},
    /*kStop*/           {kAbortStop,    kAbortStop,    kAbortStop,    kAbortStop,    kAbortStop,    kAbortStop,    kAbortStop,    kAbortStop,    kIgnore},
}};
// clang-format on

constexpr std::array<absl::string_view, kNumStates> kStateNames = {"received", "placing",  "reserving", "prefilling",
                                                                   "handover", "local",    "decoding",  "backoff",   "done"};
constexpr std::array<absl::string_view, kNumEvents> kEventNames = {
    "admitted",      "rejected",       "placed",   "unplaced",     "ticket",      "prefill_token", "prefilled",
    "prefill_ended", "prefill_failed", "reserved", "fetched",      "decode_token", "decode_done",   "decode_ended",
    "decode_failed", "local_prefilled", "backoff_over",   "client_gone", "deadline",  "stop"};
constexpr std::array<absl::string_view, 21> kActionNames = {
    "ignore",  "bug",       "admit",    "reject",    "reserve",     "begin_prefill", "give_up",
    "present", "token",     "hold",     "hand_over", "missing",     "redeem",        "go_on",   "note_done",
    "conclude", "fail_over", "place_again", "abort_gone", "abort_late", "abort_stop"};

}  // namespace

Action Lookup(State state, Event event) { return kTable[static_cast<size_t>(event)][static_cast<size_t>(state)]; }
absl::string_view Name(State state) { return kStateNames[static_cast<size_t>(state)]; }
absl::string_view Name(Event event) { return kEventNames[static_cast<size_t>(event)]; }
absl::string_view Name(Action action) { return kActionNames[static_cast<size_t>(action)]; }

}  // namespace baton::router
