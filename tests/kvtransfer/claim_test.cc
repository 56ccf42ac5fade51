#include "kvtransfer/claim.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kvtransfer/exporter.h"
#include "tests/kvtransfer/exporter_fixture.h"

namespace baton::kvtransfer {
namespace {

using testing::ExpectAllFree;
using testing::FilledLease;
using testing::TestKey;
using testing::TinyLayout;

using ClaimTest = testing::ExporterFixture;

TEST_F(ClaimTest, ClaimGivesTheBytesAndItsEndFreesThem) {
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

TEST_F(ClaimTest, ReplayIsAborted) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(refusals(Refusal::kConsumed), 1u);
  claim->Finish(ClaimEnd::kDelivered);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(refusals(Refusal::kUnknown), 1u);
}

TEST_F(ClaimTest, AClaimThatIsDroppedFreesAndCountsAsFailed) {
  const v1::Ticket ticket = *Export();
  { auto claim = exporter_.ClaimTicket(Open(ticket)); }
  EXPECT_EQ(exporter_.counters().failed, 1u);
  ExpectAllFree(*pool_);
}

TEST_F(ClaimTest, ExpiryDuringASendKeepsTheBlocksUntilItIsQuiet) {
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

TEST_F(ClaimTest, ReleaseDuringASendKeepsTheBlocksUntilItIsQuiet) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(Open(ticket));
  EXPECT_TRUE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_EQ(pool_->ledger().leased, 2);
  claim->Finish(ClaimEnd::kStopped);
  ExpectAllFree(*pool_);
}

TEST_F(ClaimTest, ForgedAndMalformedTicketsAreRefusedAndCounted) {
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

TEST_F(ClaimTest, RestartWithTheSameNameKnowsNoOldTicket) {
  const v1::Ticket ticket = *Export();
  Exporter restarted(Options());
  restarted.AddEndpoint(Endpoint(restarted));
  EXPECT_TRUE(absl::IsAborted(restarted.ClaimTicket(Open(ticket)).status()));
  EXPECT_EQ(restarted.counters().refusals[static_cast<int>(Refusal::kIncarnation)], 1u);
}

TEST_F(ClaimTest, OfManyConcurrentClaimsOneWins) {
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

TEST_F(ClaimTest, BlocksAreHandedOutAsTheyAreSealed) {
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

TEST_F(ClaimTest, ARequestThatFinishedNeedsNoMoreBlocks) {
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

TEST_F(ClaimTest, AFailedExportTellsItsReadersWhy) {
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

TEST_F(ClaimTest, BlocksTheReceiverHoldsAreNotHandedOut) {
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

TEST_F(ClaimTest, AReaderThatIsHeardOfKeepsItsBlocks) {
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

TEST_F(ClaimTest, ABrokenLinkGivesTheUseBackAFewTimes) {
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

TEST_F(ClaimTest, ALaterAttemptOfTheSameReceiverReplacesTheEarlier) {
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

TEST_F(ClaimTest, ATicketForTwoConsumersWorksTwice) {
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

TEST_F(ClaimTest, OneSilentReaderOfTwoIsStoppedAlone) {
  const v1::Ticket ticket = OpenExport(/*num_consumers=*/2);
  auto silent = exporter_.ClaimTicket(Open(ticket, "d0"));
  auto alive = exporter_.ClaimTicket(Open(ticket, "d1"));
  clock_.Advance(absl::Seconds(31));
  alive->Renew();
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_TRUE(silent->stop_requested());
  EXPECT_FALSE(alive->stop_requested());
}

TEST_F(ClaimTest, TagsArePromisedAndMade) {
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
