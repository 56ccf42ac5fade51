// The life of one export as a pure table: what each event does in each state.
#ifndef BATON_KVTRANSFER_TRANSFER_STATE_H_
#define BATON_KVTRANSFER_TRANSFER_STATE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton::kvtransfer {

enum class TransferState : uint8_t {
  kUnknown,  // never issued, or over: fetched by all it was for, released or expired. The exporter keeps no record of it.
  kOffered,  // blocks leased, ticket issued, nobody reads, uses are left
  kReading,  // transports read the blocks
  kClosing,  // released or expired while transports read: freed only when the last has stopped
};
inline constexpr int kNumTransferStates = 4;

enum class TransferEvent : uint8_t {
  kClaim,            // a valid ticket was presented and a use is left, or it replaces the receiver's own earlier attempt
  kClaimSpent,       // a valid ticket was presented, and no use is left
  kRelease,          // the owner, the router or a newer epoch no longer wants it
  kExpire,           // nobody was heard of for the time of the lease
  kProgress,         // more blocks are sealed, or the last word is in
  kReaderGone,       // a transport has stopped reading; others read on
  kLastReaderGone,   // the last one has, and uses are left (its own came back if the link broke)
  kLastReaderSpent,  // the last one has, and no use is left
};
inline constexpr int kNumTransferEvents = 8;

enum class TransferAction : uint8_t {
  kNone,
  kStartSend,   // hand the bytes out
  kWake,        // tell the transports
  kStopSend,    // ask the transports to stop; the blocks stay until the last has
  kFree,        // return the blocks and forget the transfer
  kRefuse,      // ABORTED
  kImpossible,  // cannot happen unless a caller breaks the contract; ignored and counted
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
