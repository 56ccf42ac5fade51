// The life of one export as a pure table: what each event does in each state.
#ifndef BATON_KVTRANSFER_TRANSFER_STATE_H_
#define BATON_KVTRANSFER_TRANSFER_STATE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton::kvtransfer {

enum class TransferState : uint8_t {
  kUnknown,  // never issued, or over: claimed and sent, released or expired. The exporter keeps no record of it.
  kOffered,  // blocks leased, ticket issued, nobody came yet
  kClaimed,  // a transport reads the blocks
  kClosing,  // released or expired while a transport reads: freed only when it says it has stopped
};
inline constexpr int kNumTransferStates = 4;

enum class TransferEvent : uint8_t {
  kClaim,    // a valid ticket was presented
  kRelease,  // the router, or a newer epoch, no longer wants it
  kExpire,   // the lease's time is over
  kQuiet,    // the transport has stopped reading, whether all was sent or not
};
inline constexpr int kNumTransferEvents = 4;

enum class TransferAction : uint8_t {
  kNone,
  kStartSend,  // hand the bytes out
  kStopSend,   // ask the transport to stop; the blocks stay until kQuiet
  kFree,       // return the blocks and forget the transfer
  kRefuse,     // ABORTED
  kImpossible, // cannot happen unless a caller breaks the contract; ignored and counted
};

struct TransferStep {
  TransferState next;
  TransferAction action;
  bool operator==(const TransferStep&) const = default;
};

// Total: defined for every pair.
TransferStep NextTransferStep(TransferState state, TransferEvent event);

absl::string_view Name(TransferState state);
absl::string_view Name(TransferEvent event);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_STATE_H_
