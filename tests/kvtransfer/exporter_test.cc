#include "kvtransfer/exporter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvtransfer/transport.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::ExpectAllFree;
using testing::FilledLease;
using testing::MakePool;
using testing::TestKey;
using testing::TinyLayout;

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

class ExporterTest : public ::testing::Test {
 protected:
  ExporterTest() { exporter_.AddEndpoint(Endpoint(exporter_)); }
  ~ExporterTest() override {
    EXPECT_EQ(exporter_.counters().impossible, 0u);
    exporter_.ReleaseAll();
    ExpectAllFree(*pool_);
  }
  static v1::Endpoint Endpoint(const Exporter& e) {
    v1::Endpoint endpoint;
    endpoint.set_worker_name(e.options().worker_name);
    endpoint.set_incarnation(e.options().incarnation);
    endpoint.set_transport("loopback");
    return endpoint;
  }
  Exporter::Options Options(size_t max_outstanding = 8) {
    return {.worker_name = "p0",
            .incarnation = RandomIncarnation(),
            .key = TestKey(),
            .layout = TinyLayout(),
            .fingerprint = testing::Fingerprint(),
            .clock = &clock_,
            .max_outstanding = max_outstanding};
  }
  absl::StatusOr<v1::Ticket> Export(const std::string& request = "r", uint32_t epoch = 1, int64_t blocks = 2) {
    return exporter_.ExportSealed(Spec(request, epoch, blocks), FilledLease(pool_.get(), blocks, 5));
  }
  static ExportSpec Spec(const std::string& request = "r", uint32_t epoch = 1, int64_t blocks = 2) {
    return {.request_id = request,
            .epoch = epoch,
            .num_tokens = static_cast<uint32_t>(blocks * 16),
            .lease = absl::Seconds(30)};
  }
  // An export of three blocks, none of which is sealed.
  v1::Ticket OpenExport(uint32_t num_consumers = 1) {
    ExportSpec spec = Spec("open", 1, 3);
    spec.num_consumers = num_consumers;
    return *exporter_.Export(spec, FilledLease(pool_.get(), 3, 5));
  }
  static v1::FetchOpen Open(const v1::Ticket& ticket, const std::string& consumer = "", uint32_t attempt = 1,
                            uint32_t first_block = 0) {
    v1::FetchOpen open;
    *open.mutable_ticket() = ticket;
    open.set_consumer(consumer);
    open.set_attempt(attempt);
    open.set_first_block(first_block);
    return open;
  }
  uint64_t refusals(Refusal why) { return exporter_.counters().refusals[static_cast<int>(why)]; }

  SimulatedClock clock_;
  std::shared_ptr<kvcache::BlockPool> pool_ = MakePool(TinyLayout(), 64);
  Exporter exporter_{Options()};
};

TEST_F(ExporterTest, ClaimGivesTheBytesAndItsEndFreesThem) {
  auto ticket = Export();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(pool_->ledger().leased, 2);
  auto claim = exporter_.ClaimTicket(Open(*ticket));
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->num_blocks(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(claim->HasBlock());
    EXPECT_EQ(claim->next_block(), i);
    const v1::BlockSeal seal = claim->MakeSeal();
    EXPECT_EQ(seal.block_idx(), i);
    EXPECT_EQ(seal.generation(), ticket->blocks(i).generation());
    EXPECT_EQ(seal.checksum(), BlockChecksum(claim->bytes(i)));
    EXPECT_TRUE(seal.tag().empty());
  }
  EXPECT_FALSE(claim->HasBlock());
  EXPECT_TRUE(claim->Done());
  EXPECT_EQ(claim->MakeEnd().code(), 0u);
  EXPECT_EQ(claim->MakeEnd().num_blocks(), 2u);
  EXPECT_EQ(exporter_.counters().in_flight, 1u);
  claim->Finish(ClaimEnd::kDelivered);
  const Exporter::Counters c = exporter_.counters();
  EXPECT_EQ(c.completed, 1u);
  EXPECT_EQ(c.in_flight, 0u);
  EXPECT_EQ(c.outstanding, 0u);
  EXPECT_EQ(c.bytes_sent, 2 * TinyLayout().block_bytes());
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReplayIsAborted) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(refusals(Refusal::kConsumed), 1u);
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(refusals(Refusal::kUnknown), 1u);
}

TEST_F(ExporterTest, AClaimThatIsDroppedFreesAndCountsAsFailed) {
  const v1::Ticket ticket = *Export();
  { auto claim = exporter_.ClaimTicket(Open(ticket)); }
  EXPECT_EQ(exporter_.counters().failed, 1u);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReleaseIsIdempotent) {
  const v1::Ticket ticket = *Export();
  EXPECT_TRUE(exporter_.Release(TransferId::Of(ticket)));
  ExpectAllFree(*pool_);
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_FALSE(exporter_.Release(TransferId::Random()));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
}

// A prefill that was cancelled just when its ticket was on the way kept the blocks until the lease ended.
TEST_F(ExporterTest, ATicketThatWasLostOnTheWayIsReleasedByItsRequest) {
  const v1::Ticket ticket = *Export();
  EXPECT_FALSE(exporter_.ReleaseRequest("another", ticket.epoch()));
  EXPECT_FALSE(exporter_.ReleaseRequest(ticket.request_id(), ticket.epoch() - 1)) << "a later attempt's";
  EXPECT_TRUE(exporter_.ReleaseRequest(ticket.request_id(), ticket.epoch()));
  ExpectAllFree(*pool_);
  EXPECT_FALSE(exporter_.ReleaseRequest(ticket.request_id(), ticket.epoch()));
}

TEST_F(ExporterTest, ExpiryFreesWhatNobodyReads) {
  const v1::Ticket ticket = *Export();
  clock_.Advance(absl::Seconds(30) - absl::Milliseconds(1));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  EXPECT_EQ(pool_->ledger().leased, 2);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_EQ(exporter_.counters().expired, 1u);
  ExpectAllFree(*pool_);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
}

TEST_F(ExporterTest, AnExpiredTicketIsRefusedEvenBeforeTheReaperCame) {
  const v1::Ticket ticket = *Export();
  clock_.Advance(absl::Seconds(31));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(refusals(Refusal::kExpired), 1u);
  EXPECT_EQ(exporter_.counters().expired, 1u);
  ExpectAllFree(*pool_);
}

// Bug class: blocks freed at expiry or abort while a transport still read them, and reused by another request.
TEST_F(ExporterTest, ExpiryDuringASendKeepsTheBlocksUntilItIsQuiet) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  clock_.Advance(absl::Seconds(31));
  EXPECT_FALSE(claim->stop_requested());
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  EXPECT_TRUE(claim->stop_requested());
  EXPECT_TRUE(absl::IsAborted(claim->CheckStillValid()));
  EXPECT_EQ(pool_->ledger().leased, 2) << "still being read";
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(exporter_.counters().completed, 0u) << "the receiver must not use what was read past the lease";
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReleaseDuringASendKeepsTheBlocksUntilItIsQuiet) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  EXPECT_TRUE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_EQ(pool_->ledger().leased, 2);
  claim->Finish(ClaimEnd::kStopped);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ForgedAndMalformedTicketsAreRefusedAndCounted) {
  const v1::Ticket ticket = *Export();
  const uint64_t hash = testing::PoolHash(*pool_);
  v1::Ticket t = ticket;
  t.mutable_blocks(0)->set_generation(t.blocks(0).generation() + 1);
  EXPECT_TRUE(absl::IsPermissionDenied(exporter_.ClaimTicket(Open(t)).status()));
  EXPECT_EQ(refusals(Refusal::kForged), 1u);
  t = ticket;
  t.clear_blocks();
  EXPECT_TRUE(absl::IsInvalidArgument(exporter_.ClaimTicket(Open(t)).status()));
  EXPECT_EQ(refusals(Refusal::kMalformed), 1u);
  // Signed with the right key, but not what this exporter issued: another key holder made it up.
  t = ticket;
  t.set_epoch(2);
  SignTicket(TestKey(), &t);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(t)).status()));
  t = ticket;
  t.mutable_blocks(0)->set_generation(t.blocks(0).generation() + 1);
  SignTicket(TestKey(), &t);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(t)).status()));
  EXPECT_EQ(refusals(Refusal::kMismatch), 2u);
  EXPECT_EQ(testing::PoolHash(*pool_), hash);
  EXPECT_TRUE(exporter_.ClaimTicket(Open(ticket)).ok()) << "forgeries must not use the ticket up";
}

TEST_F(ExporterTest, RestartWithTheSameNameKnowsNoOldTicket) {
  const v1::Ticket ticket = *Export();
  Exporter restarted(Options());
  restarted.AddEndpoint(Endpoint(restarted));
  EXPECT_TRUE(absl::IsAborted(restarted.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(restarted.counters().refusals[static_cast<int>(Refusal::kIncarnation)], 1u);
}

TEST_F(ExporterTest, NewerEpochSupersedesOlderAndStaleOneIsRefused) {
  const v1::Ticket first = *Export("r", 1);
  const v1::Ticket second = *Export("r", 2);
  EXPECT_EQ(exporter_.counters().superseded, 1u);
  EXPECT_EQ(pool_->ledger().leased, 2) << "the first export's blocks are free again";
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(first)).status()));
  EXPECT_TRUE(absl::IsAborted(Export("r", 2).status()));
  EXPECT_TRUE(absl::IsAborted(Export("r", 1).status()));
  EXPECT_EQ(pool_->ledger().leased, 2) << "a refused export frees its lease";
  EXPECT_TRUE(exporter_.ClaimTicket(Open(second)).ok());
}

TEST_F(ExporterTest, BadExportsAreTypedErrorsAndFreeTheLease) {
  Exporter unserved(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      unserved.Export(Spec("r", 1, 1), FilledLease(pool_.get(), 1, 1)).status()));
  auto code = [&](const char* request, int64_t blocks, uint32_t tokens, absl::Duration duration) {
    return exporter_
        .Export({.request_id = request, .num_tokens = tokens, .lease = duration}, FilledLease(pool_.get(), blocks, 1))
        .status()
        .code();
  };
  EXPECT_EQ(code("", 1, 16, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 2, 16, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 17, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 0, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 16, -absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 16, absl::InfiniteDuration()), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsInvalidArgument(exporter_.Export(Spec("r", 1, 1), {}).status()));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Export(absl::StrCat("r", i)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Export("r9").status()));
  EXPECT_EQ(pool_->ledger().leased, 16);
}

TEST_F(ExporterTest, OfManyConcurrentClaimsOneWins) {
  for (int round = 0; round < 20; ++round) {
    const v1::Ticket ticket = *Export(absl::StrCat("r", round));
    std::atomic<int> won{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        auto claim = exporter_.ClaimTicket(Open(ticket));
        if (claim.ok()) ++won;
      });
    }
    std::thread releaser([&] { exporter_.Release(TransferId::Of(ticket)); });
    for (auto& t : threads) t.join();
    releaser.join();
    EXPECT_LE(won, 1);
    ExpectAllFree(*pool_);
  }
}

TEST_F(ExporterTest, ItsOwnReaperFreesWhatExpired) {
  Exporter::Options options = Options();
  options.reap_interval = absl::Milliseconds(1);
  Exporter reaping(options);
  reaping.AddEndpoint(Endpoint(reaping));
  ASSERT_TRUE(reaping.ExportSealed(Spec("r", 1, 1), FilledLease(pool_.get(), 1, 1)).ok());
  clock_.Advance(absl::Seconds(31));
  EXPECT_TRUE(testing::Eventually([&] { return reaping.counters().expired == 1; }));
}

TEST_F(ExporterTest, BlocksAreHandedOutAsTheyAreSealed) {
  const v1::Ticket ticket = OpenExport();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  ASSERT_TRUE(claim.ok()) << claim.status();
  int woken = 0;
  claim->SetWake([&] { ++woken; });
  EXPECT_FALSE(claim->HasBlock());
  EXPECT_FALSE(claim->Done());
  EXPECT_TRUE(exporter_.Seal(TransferId::Of(ticket), 2));
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(exporter_.Seal(TransferId::Of(ticket), 1)) << "never goes back";
  EXPECT_EQ(woken, 1);
  claim->MakeSeal();
  EXPECT_TRUE(claim->HasBlock());
  claim->MakeSeal();
  EXPECT_FALSE(claim->HasBlock());
  EXPECT_FALSE(claim->Done());
  EXPECT_NE(claim->MakeEnd().code(), 0u) << "an end before the end is an error";
  EXPECT_TRUE(exporter_.Close(TransferId::Of(ticket), false, "last words"));
  EXPECT_FALSE(exporter_.Close(TransferId::Of(ticket), false, "again"));
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(claim->HasBlock()) << "closing seals the rest";
  claim->MakeSeal();
  EXPECT_TRUE(claim->Done());
  const v1::TransferEnd end = claim->MakeEnd();
  EXPECT_EQ(end.code(), 0u);
  EXPECT_FALSE(end.finished());
  EXPECT_EQ(end.payload(), "last words");
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(exporter_.counters().completed, 1u);
  ExpectAllFree(*pool_);
  EXPECT_FALSE(exporter_.Seal(TransferId::Of(ticket), 3));
}

TEST_F(ExporterTest, ARequestThatFinishedNeedsNoMoreBlocks) {
  const v1::Ticket ticket = OpenExport();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  exporter_.Seal(TransferId::Of(ticket), 1);
  EXPECT_TRUE(exporter_.Close(TransferId::Of(ticket), /*finished=*/true, ""));
  EXPECT_FALSE(claim->HasBlock());
  EXPECT_TRUE(claim->Done());
  EXPECT_TRUE(claim->MakeEnd().finished());
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(exporter_.counters().finished, 1u);
  EXPECT_EQ(exporter_.counters().bytes_sent, 0u);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, AFailedExportTellsItsReadersWhy) {
  const v1::Ticket ticket = OpenExport();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  bool woken = false;
  claim->SetWake([&] { woken = true; });
  EXPECT_TRUE(exporter_.Fail(TransferId::Of(ticket), absl::CancelledError("the client went")));
  EXPECT_TRUE(woken);
  EXPECT_TRUE(claim->stop_requested());
  EXPECT_EQ(claim->MakeEnd().code(), static_cast<uint32_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(claim->MakeEnd().message(), "the client went");
  EXPECT_EQ(pool_->ledger().leased, 3);
  claim->Finish(ClaimEnd::kStopped);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, BlocksTheReceiverHoldsAreNotHandedOut) {
  const v1::Ticket ticket = OpenExport();
  exporter_.Close(TransferId::Of(ticket), false, "");
  EXPECT_TRUE(absl::IsInvalidArgument(exporter_.ClaimTicket(Open(ticket, "", 1, 4)).status()));
  auto claim = exporter_.ClaimTicket(Open(ticket, "", 1, 2));
  ASSERT_TRUE(claim.ok());
  EXPECT_EQ(claim->next_block(), 2u);
  claim->MakeSeal();
  EXPECT_TRUE(claim->Done());
  EXPECT_EQ(claim->MakeEnd().num_blocks(), 1u);
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(exporter_.counters().bytes_sent, TinyLayout().block_bytes());
}

TEST_F(ExporterTest, AnOpenExportExpiresWithItsRequestNotWithItsLease) {
  ExportSpec spec = Spec("slow", 1, 3);
  spec.open_until = clock_.Now() + absl::Minutes(5);
  const v1::Ticket ticket = *exporter_.Export(spec, FilledLease(pool_.get(), 3, 5));
  clock_.Advance(absl::Minutes(4));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  EXPECT_EQ(exporter_.counters().oldest, absl::Minutes(4));
  exporter_.Close(TransferId::Of(ticket), false, "");
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  const v1::Ticket second = *exporter_.Export(spec, FilledLease(pool_.get(), 3, 5));
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u) << "its request's deadline has passed";
}

// A slow receiver that is alive never loses its blocks.
TEST_F(ExporterTest, AReaderThatIsHeardOfKeepsItsBlocks) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(20));
    claim->Renew();
    EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  }
  EXPECT_TRUE(claim->CheckStillValid().ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_TRUE(claim->stop_requested());
}

TEST_F(ExporterTest, ABrokenLinkGivesTheUseBackAFewTimes) {
  const v1::Ticket ticket = *Export();
  for (int i = 0; i < 3; ++i) {
    auto claim = exporter_.ClaimTicket(Open(ticket, "d0", 1 + i));
    ASSERT_TRUE(claim.ok()) << i << claim.status();
    EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d1", 1)).status()));
    claim->Finish(ClaimEnd::kBroken);
    EXPECT_EQ(pool_->ledger().leased, 2);
  }
  auto claim = exporter_.ClaimTicket(Open(ticket, "d0", 9));
  ASSERT_TRUE(claim.ok());
  claim->Finish(ClaimEnd::kBroken);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ALaterAttemptOfTheSameReceiverReplacesTheEarlier) {
  const v1::Ticket ticket = *Export();
  auto first = exporter_.ClaimTicket(Open(ticket, "d0", 1));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d0", 1)).status()));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d1", 2)).status()));
  auto second = exporter_.ClaimTicket(Open(ticket, "d0", 2));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(first->stop_requested());
  EXPECT_FALSE(second->stop_requested());
  first->Finish(ClaimEnd::kBroken);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d1", 1)).status())) << "its use has moved on";
  EXPECT_EQ(pool_->ledger().leased, 2);
  second->MakeSeal();
  second->MakeSeal();
  second->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(exporter_.counters().completed, 1u);
  EXPECT_EQ(exporter_.counters().replaced, 1u);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ATicketForTwoConsumersWorksTwice) {
  const v1::Ticket ticket = OpenExport(/*num_consumers=*/2);
  auto first = exporter_.ClaimTicket(Open(ticket, "d0"));
  auto second = exporter_.ClaimTicket(Open(ticket, "d1"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d2")).status()));
  exporter_.Close(TransferId::Of(ticket), false, "");
  first->Finish(ClaimEnd::kDelivered);
  EXPECT_EQ(pool_->ledger().leased, 3) << "the second still reads";
  EXPECT_TRUE(second->CheckStillValid().ok());
  second->Finish(ClaimEnd::kDelivered);
  ExpectAllFree(*pool_);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket, "d3")).status()));
}

TEST_F(ExporterTest, OneSilentReaderOfTwoIsStoppedAlone) {
  const v1::Ticket ticket = OpenExport(/*num_consumers=*/2);
  auto silent = exporter_.ClaimTicket(Open(ticket, "d0"));
  auto alive = exporter_.ClaimTicket(Open(ticket, "d1"));
  clock_.Advance(absl::Seconds(31));
  alive->Renew();
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_TRUE(silent->stop_requested());
  EXPECT_FALSE(alive->stop_requested());
}

TEST_F(ExporterTest, OversizedLastWordsEndTheExport) {
  const v1::Ticket ticket = OpenExport();
  exporter_.Close(TransferId::Of(ticket), false, std::string(kMaxEndPayloadBytes + 1, 'x'));
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, TagsArePromisedAndMade) {
  Exporter::Options options = Options();
  options.block_tags = true;
  Exporter tagging(options);
  tagging.AddEndpoint(Endpoint(tagging));
  const v1::Ticket ticket = *tagging.ExportSealed(Spec("r", 1, 1), FilledLease(pool_.get(), 1, 1));
  EXPECT_TRUE(ticket.block_tags());
  auto claim = tagging.ClaimTicket(Open(ticket));
  const v1::BlockSeal seal = claim->MakeSeal();
  EXPECT_EQ(seal.tag(), BlockTagger(TestKey(), ticket).Tag(0, seal.generation(), claim->bytes(0)));
  EXPECT_FALSE(claim->MakeEnd().tag().empty());
}

}  // namespace
}  // namespace baton::kvtransfer
