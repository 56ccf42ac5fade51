#include "kvtransfer/exporter.h"

#include <gtest/gtest.h>

#include "kvtransfer/transport.h"
#include "tests/kvtransfer/exporter_fixture.h"

namespace baton::kvtransfer {
namespace {

using testing::ExpectAllFree;
using testing::FilledLease;

using ExporterTest = testing::ExporterFixture;

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

TEST_F(ExporterTest, ItsOwnReaperFreesWhatExpired) {
  Exporter::Options options = Options();
  options.reap_interval = absl::Milliseconds(1);
  Exporter reaping(options);
  reaping.AddEndpoint(Endpoint(reaping));
  ASSERT_TRUE(reaping.ExportSealed(Spec("r", 1, 1), FilledLease(pool_.get(), 1, 1)).ok());
  clock_.Advance(absl::Seconds(31));
  EXPECT_TRUE(testing::Eventually([&] { return reaping.counters().expired == 1; }));
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
TEST_F(ExporterTest, OversizedLastWordsEndTheExport) {
  const v1::Ticket ticket = OpenExport();
  exporter_.Close(TransferId::Of(ticket), false, std::string(kMaxEndPayloadBytes + 1, 'x'));
  ExpectAllFree(*pool_);
}

}  // namespace
}  // namespace baton::kvtransfer
