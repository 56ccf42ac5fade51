#include "kvtransfer/exporter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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
      {S::kUnknown, E::kClaim, {S::kUnknown, A::kRefuse}},     {S::kUnknown, E::kRelease, {S::kUnknown, A::kNone}},
      {S::kUnknown, E::kExpire, {S::kUnknown, A::kNone}},      {S::kUnknown, E::kQuiet, {S::kUnknown, A::kImpossible}},
      {S::kOffered, E::kClaim, {S::kClaimed, A::kStartSend}},  {S::kOffered, E::kRelease, {S::kUnknown, A::kFree}},
      {S::kOffered, E::kExpire, {S::kUnknown, A::kFree}},      {S::kOffered, E::kQuiet, {S::kOffered, A::kImpossible}},
      {S::kClaimed, E::kClaim, {S::kClaimed, A::kRefuse}},     {S::kClaimed, E::kRelease, {S::kClosing, A::kStopSend}},
      {S::kClaimed, E::kExpire, {S::kClosing, A::kStopSend}},  {S::kClaimed, E::kQuiet, {S::kUnknown, A::kFree}},
      {S::kClosing, E::kClaim, {S::kClosing, A::kRefuse}},     {S::kClosing, E::kRelease, {S::kClosing, A::kNone}},
      {S::kClosing, E::kExpire, {S::kClosing, A::kNone}},      {S::kClosing, E::kQuiet, {S::kUnknown, A::kFree}},
  };
  EXPECT_EQ(std::size(rows), static_cast<size_t>(kNumTransferStates * kNumTransferEvents));
  for (const Row& row : rows) {
    EXPECT_EQ(NextTransferStep(row.state, row.event), row.expected)
        << std::string(Name(row.state)) << " + " << std::string(Name(row.event));
  }
}

class ExporterTest : public ::testing::Test {
 protected:
  ExporterTest() { exporter_.SetEndpoint(Endpoint(exporter_)); }
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
    return exporter_.Export(request, epoch, FilledLease(pool_.get(), blocks, 5), static_cast<uint32_t>(blocks * 16),
                            absl::Seconds(30));
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
  auto claim = exporter_.ClaimTicket(*ticket);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->num_blocks(), 2u);
  EXPECT_EQ(BlockChecksum(claim->bytes(1)), ticket->blocks(1).checksum());
  EXPECT_TRUE(claim->CheckStillValid().ok());
  EXPECT_EQ(exporter_.counters().in_flight, 1u);
  claim->Finish(true);
  const Exporter::Counters c = exporter_.counters();
  EXPECT_EQ(c.completed, 1u);
  EXPECT_EQ(c.in_flight, 0u);
  EXPECT_EQ(c.outstanding, 0u);
  EXPECT_EQ(c.bytes_sent, 2 * TinyLayout().block_bytes());
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReplayIsAborted) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(ticket);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
  EXPECT_EQ(refusals(Refusal::kConsumed), 1u);
  claim->Finish(true);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
  EXPECT_EQ(refusals(Refusal::kUnknown), 1u);
}

TEST_F(ExporterTest, AClaimThatIsDroppedFreesAndCountsAsFailed) {
  const v1::Ticket ticket = *Export();
  { auto claim = exporter_.ClaimTicket(ticket); }
  EXPECT_EQ(exporter_.counters().failed, 1u);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReleaseIsIdempotent) {
  const v1::Ticket ticket = *Export();
  EXPECT_TRUE(exporter_.Release(TransferId::Of(ticket)));
  ExpectAllFree(*pool_);
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_FALSE(exporter_.Release(TransferId::Random()));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
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
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
}

TEST_F(ExporterTest, AnExpiredTicketIsRefusedEvenBeforeTheReaperCame) {
  const v1::Ticket ticket = *Export();
  clock_.Advance(absl::Seconds(31));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
  EXPECT_EQ(refusals(Refusal::kExpired), 1u);
  EXPECT_EQ(exporter_.counters().expired, 1u);
  ExpectAllFree(*pool_);
}

// Bug class: blocks freed at expiry or abort while a transport still read them, and reused by another request.
TEST_F(ExporterTest, ExpiryDuringASendKeepsTheBlocksUntilItIsQuiet) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(ticket);
  clock_.Advance(absl::Seconds(31));
  EXPECT_FALSE(claim->stop_requested());
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 1u);
  EXPECT_EQ(exporter_.ReapExpired(clock_.Now()), 0u);
  EXPECT_TRUE(claim->stop_requested());
  EXPECT_TRUE(absl::IsAborted(claim->CheckStillValid()));
  EXPECT_EQ(pool_->ledger().leased, 2) << "still being read";
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(ticket).status()));
  claim->Finish(true);
  EXPECT_EQ(exporter_.counters().completed, 0u) << "the receiver must not use what was read past the lease";
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ReleaseDuringASendKeepsTheBlocksUntilItIsQuiet) {
  const v1::Ticket ticket = *Export();
  auto claim = exporter_.ClaimTicket(ticket);
  EXPECT_TRUE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_FALSE(exporter_.Release(TransferId::Of(ticket)));
  EXPECT_EQ(pool_->ledger().leased, 2);
  claim->Finish(false);
  ExpectAllFree(*pool_);
}

TEST_F(ExporterTest, ForgedAndMalformedTicketsAreRefusedAndCounted) {
  const v1::Ticket ticket = *Export();
  const uint64_t hash = testing::PoolHash(*pool_);
  v1::Ticket t = ticket;
  t.mutable_blocks(0)->set_generation(t.blocks(0).generation() + 1);
  EXPECT_TRUE(absl::IsPermissionDenied(exporter_.ClaimTicket(t).status()));
  EXPECT_EQ(refusals(Refusal::kForged), 1u);
  t = ticket;
  t.clear_blocks();
  EXPECT_TRUE(absl::IsInvalidArgument(exporter_.ClaimTicket(t).status()));
  EXPECT_EQ(refusals(Refusal::kMalformed), 1u);
  // Signed with the right key, but not what this exporter issued: another key holder made it up.
  t = ticket;
  t.set_epoch(2);
  SignTicket(TestKey(), &t);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(t).status()));
  t = ticket;
  t.mutable_blocks(0)->set_generation(t.blocks(0).generation() + 1);
  SignTicket(TestKey(), &t);
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(t).status()));
  EXPECT_EQ(refusals(Refusal::kMismatch), 2u);
  EXPECT_EQ(testing::PoolHash(*pool_), hash);
  EXPECT_TRUE(exporter_.ClaimTicket(ticket).ok()) << "forgeries must not use the ticket up";
}

TEST_F(ExporterTest, RestartWithTheSameNameKnowsNoOldTicket) {
  const v1::Ticket ticket = *Export();
  Exporter restarted(Options());
  restarted.SetEndpoint(Endpoint(restarted));
  EXPECT_TRUE(absl::IsAborted(restarted.ClaimTicket(ticket).status()));
  EXPECT_EQ(restarted.counters().refusals[static_cast<int>(Refusal::kIncarnation)], 1u);
}

TEST_F(ExporterTest, NewerEpochSupersedesOlderAndStaleOneIsRefused) {
  const v1::Ticket first = *Export("r", 1);
  const v1::Ticket second = *Export("r", 2);
  EXPECT_EQ(exporter_.counters().superseded, 1u);
  EXPECT_EQ(pool_->ledger().leased, 2) << "the first export's blocks are free again";
  EXPECT_TRUE(absl::IsAborted(exporter_.ClaimTicket(first).status()));
  EXPECT_TRUE(absl::IsAborted(Export("r", 2).status()));
  EXPECT_TRUE(absl::IsAborted(Export("r", 1).status()));
  EXPECT_EQ(pool_->ledger().leased, 2) << "a refused export frees its lease";
  EXPECT_TRUE(exporter_.ClaimTicket(second).ok());
}

TEST_F(ExporterTest, BadExportsAreTypedErrorsAndFreeTheLease) {
  Exporter unserved(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      unserved.Export("r", 1, FilledLease(pool_.get(), 1, 1), 16, absl::Seconds(1)).status()));
  auto code = [&](const char* request, int64_t blocks, uint32_t tokens, absl::Duration duration) {
    return exporter_.Export(request, 1, FilledLease(pool_.get(), blocks, 1), tokens, duration).status().code();
  };
  EXPECT_EQ(code("", 1, 16, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 2, 16, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 17, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 0, absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 16, -absl::Seconds(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("r", 1, 16, absl::InfiniteDuration()), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsInvalidArgument(exporter_.Export("r", 1, {}, 16, absl::Seconds(1)).status()));
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
        auto claim = exporter_.ClaimTicket(ticket);
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
  reaping.SetEndpoint(Endpoint(reaping));
  ASSERT_TRUE(reaping.Export("r", 1, FilledLease(pool_.get(), 1, 1), 16, absl::Seconds(1)).ok());
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(testing::Eventually([&] { return reaping.counters().expired == 1; }));
}

}  // namespace
}  // namespace baton::kvtransfer
