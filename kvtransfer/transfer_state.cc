#include "kvtransfer/transfer_state.h"

namespace baton::kvtransfer {
namespace {

using S = TransferState;
using A = TransferAction;

// Rows: states in order. Columns: kClaim, kRelease, kExpire, kQuiet.
constexpr TransferStep kTable[kNumTransferStates][kNumTransferEvents] = {
    // kUnknown: releasing or expiring what is over is a no-op.
    {{S::kUnknown, A::kRefuse}, {S::kUnknown, A::kNone}, {S::kUnknown, A::kNone}, {S::kUnknown, A::kImpossible}},
    // kOffered: nobody reads, so the blocks go back at once.
    {{S::kClaimed, A::kStartSend}, {S::kUnknown, A::kFree}, {S::kUnknown, A::kFree}, {S::kOffered, A::kImpossible}},
    // kClaimed: a second claim is refused; the end of the first frees, whether it sent all or not, for a ticket is good
    // for one fetch.
    {{S::kClaimed, A::kRefuse}, {S::kClosing, A::kStopSend}, {S::kClosing, A::kStopSend}, {S::kUnknown, A::kFree}},
    // kClosing
    {{S::kClosing, A::kRefuse}, {S::kClosing, A::kNone}, {S::kClosing, A::kNone}, {S::kUnknown, A::kFree}},
};

}  // namespace

TransferStep NextTransferStep(TransferState state, TransferEvent event) {
  return kTable[static_cast<int>(state)][static_cast<int>(event)];
}

absl::string_view Name(TransferState state) {
  constexpr const char* kNames[kNumTransferStates] = {"unknown", "offered", "claimed", "closing"};
  return kNames[static_cast<int>(state)];
}

absl::string_view Name(TransferEvent event) {
  constexpr const char* kNames[kNumTransferEvents] = {"claim", "release", "expire", "quiet"};
  return kNames[static_cast<int>(event)];
}

}  // namespace baton::kvtransfer
