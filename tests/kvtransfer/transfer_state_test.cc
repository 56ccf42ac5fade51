#include "kvtransfer/transfer_state.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>

namespace baton::kvtransfer {
namespace {

using S = TransferState;
using E = TransferEvent;
using A = TransferAction;

TEST(TransferStateTest, EveryPairOfStateAndEvent) {
  struct Row {
    S state;
    E event;
    TransferStep expected;
  };
  const Row rows[] = {
      {S::kUnknown, E::kClaim, {S::kUnknown, A::kRefuse}},
      {S::kUnknown, E::kClaimSpent, {S::kUnknown, A::kRefuse}},
      {S::kUnknown, E::kRelease, {S::kUnknown, A::kNone}},
      {S::kUnknown, E::kExpire, {S::kUnknown, A::kNone}},
      {S::kUnknown, E::kProgress, {S::kUnknown, A::kNone}},
      {S::kUnknown, E::kReaderGone, {S::kUnknown, A::kImpossible}},
      {S::kUnknown, E::kLastReaderGone, {S::kUnknown, A::kImpossible}},
      {S::kUnknown, E::kLastReaderSpent, {S::kUnknown, A::kImpossible}},
      {S::kOffered, E::kClaim, {S::kReading, A::kStartSend}},
      {S::kOffered, E::kClaimSpent, {S::kOffered, A::kImpossible}},
      {S::kOffered, E::kRelease, {S::kUnknown, A::kFree}},
      {S::kOffered, E::kExpire, {S::kUnknown, A::kFree}},
      {S::kOffered, E::kProgress, {S::kOffered, A::kNone}},
      {S::kOffered, E::kReaderGone, {S::kOffered, A::kImpossible}},
      {S::kOffered, E::kLastReaderGone, {S::kOffered, A::kImpossible}},
      {S::kOffered, E::kLastReaderSpent, {S::kOffered, A::kImpossible}},
      {S::kReading, E::kClaim, {S::kReading, A::kStartSend}},
      {S::kReading, E::kClaimSpent, {S::kReading, A::kRefuse}},
      {S::kReading, E::kRelease, {S::kClosing, A::kStopSend}},
      {S::kReading, E::kExpire, {S::kClosing, A::kStopSend}},
      {S::kReading, E::kProgress, {S::kReading, A::kWake}},
      {S::kReading, E::kReaderGone, {S::kReading, A::kNone}},
      {S::kReading, E::kLastReaderGone, {S::kOffered, A::kNone}},
      {S::kReading, E::kLastReaderSpent, {S::kUnknown, A::kFree}},
      {S::kClosing, E::kClaim, {S::kClosing, A::kRefuse}},
      {S::kClosing, E::kClaimSpent, {S::kClosing, A::kRefuse}},
      {S::kClosing, E::kRelease, {S::kClosing, A::kNone}},
      {S::kClosing, E::kExpire, {S::kClosing, A::kNone}},
      {S::kClosing, E::kProgress, {S::kClosing, A::kNone}},
      {S::kClosing, E::kReaderGone, {S::kClosing, A::kNone}},
      {S::kClosing, E::kLastReaderGone, {S::kUnknown, A::kFree}},
      {S::kClosing, E::kLastReaderSpent, {S::kUnknown, A::kFree}},
  };
  EXPECT_EQ(std::size(rows), static_cast<size_t>(kNumTransferStates * kNumTransferEvents));
  for (const Row& row : rows) {
    EXPECT_EQ(NextTransferStep(row.state, row.event), row.expected)
        << std::string(Name(row.state)) << " + " << std::string(Name(row.event));
  }
}

}  // namespace
}  // namespace baton::kvtransfer
