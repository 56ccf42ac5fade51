#include "kvtransfer/transfer_state.h"

namespace baton::kvtransfer {
namespace {

using S = TransferState;
using A = TransferAction;

// Rows: states in order. Columns: events in order.
// clang-format off
constexpr TransferStep kTable[kNumTransferStates][kNumTransferEvents] = {
    // kUnknown: what comes late for an export that is over means nothing any more.
    {{S::kUnknown, A::kRefuse}, {S::kUnknown, A::kRefuse}, {S::kUnknown, A::kNone}, {S::kUnknown, A::kNone},
     {S::kUnknown, A::kNone}, {S::kUnknown, A::kImpossible}, {S::kUnknown, A::kImpossible},
     {S::kUnknown, A::kImpossible}},
    // kOffered: nobody reads, so the blocks go back at once.
    {{S::kReading, A::kStartSend}, {S::kOffered, A::kImpossible}, {S::kUnknown, A::kFree}, {S::kUnknown, A::kFree},
     {S::kOffered, A::kNone}, {S::kOffered, A::kImpossible}, {S::kOffered, A::kImpossible},
     {S::kOffered, A::kImpossible}},
    // kReading
    {{S::kReading, A::kStartSend}, {S::kReading, A::kRefuse}, {S::kClosing, A::kStopSend},
     {S::kClosing, A::kStopSend}, {S::kReading, A::kWake}, {S::kReading, A::kNone}, {S::kOffered, A::kNone},
     {S::kUnknown, A::kFree}},
    // kClosing
    {{S::kClosing, A::kRefuse}, {S::kClosing, A::kRefuse}, {S::kClosing, A::kNone}, {S::kClosing, A::kNone},
     {S::kClosing, A::kNone}, {S::kClosing, A::kNone}, {S::kUnknown, A::kFree}, {S::kUnknown, A::kFree}},
};
// clang-format on

}  // namespace

TransferStep NextTransferStep(TransferState state, TransferEvent event) {
  return kTable[static_cast<int>(state)][static_cast<int>(event)];
}

absl::string_view Name(TransferState state) {
  constexpr const char* kNames[kNumTransferStates] = {"unknown", "offered", "reading", "closing"};
  return kNames[static_cast<int>(state)];
}

absl::string_view Name(TransferEvent event) {
  constexpr const char* kNames[kNumTransferEvents] = {"claim",    "claim_spent", "release",          "expire",
                                                      "progress", "reader_gone", "last_reader_gone", "last_reader_spent"};
  return kNames[static_cast<int>(event)];
}

}  // namespace baton::kvtransfer
