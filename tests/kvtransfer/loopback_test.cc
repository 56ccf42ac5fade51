#include "kvtransfer/loopback.h"

#include <gtest/gtest.h>

#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::ExpectAllFree;
using testing::FilledLease;
using testing::MakePool;
using testing::Outcome;
using testing::Soon;
using testing::TestKey;
using testing::TinyLayout;

class LoopbackTest : public ::testing::Test {
 protected:
  ~LoopbackTest() override {
    client_->Shutdown();
    server_->Shutdown();
    exporter_->ReleaseAll();
    ExpectAllFree(*prefill_);
    ExpectAllFree(*decode_);
  }
  std::unique_ptr<Exporter> MakeExporter() {
    return std::make_unique<Exporter>(Exporter::Options{.worker_name = "p0",
                                                        .incarnation = RandomIncarnation(),
                                                        .key = TestKey(),
                                                        .layout = TinyLayout(),
                                                        .fingerprint = testing::Fingerprint()});
  }
  v1::Ticket Export(const std::string& request, int64_t blocks, uint64_t seed) {
    kvcache::BlockLease lease = FilledLease(prefill_.get(), blocks, seed);
    return *exporter_->ExportSealed(
        {.request_id = request, .num_tokens = static_cast<uint32_t>(blocks * 16), .lease = absl::Seconds(30)},
        std::move(lease));
  }
  absl::StatusOr<FetchStats> FetchAndWait(const v1::Ticket& ticket, Outcome* outcome, absl::Time deadline = Soon()) {
    client_->Fetch({.ticket = ticket, .destination = *decode_->AllocateLease(ticket.blocks_size() + 1), .deadline = deadline},
                   outcome->Callback());
    return outcome->Wait();
  }

  std::shared_ptr<kvcache::BlockPool> prefill_ = MakePool(TinyLayout(), 64);
  std::shared_ptr<kvcache::BlockPool> decode_ = MakePool(TinyLayout(), 256);
  std::unique_ptr<Exporter> exporter_ = MakeExporter();
  std::unique_ptr<TransportServer> server_ = MakeLoopbackServer(exporter_.get());
  std::unique_ptr<TransportClient> client_ = MakeLoopbackClient(
      {.key = TestKey(), .layout = TinyLayout(), .fingerprint = testing::Fingerprint()});
};

TEST_F(LoopbackTest, BytesArriveAndBothSidesAreFree) {
  Outcome outcome;
  auto stats = FetchAndWait(Export("r", 3, 7), &outcome);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->bytes, 3 * TinyLayout().block_bytes());
  EXPECT_EQ(stats->transport, "loopback");
  EXPECT_EQ(outcome.destination().blocks().size(), 4u);
  EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 3, 7));
  ExpectAllFree(*prefill_);
}

TEST_F(LoopbackTest, ReplayIsAborted) {
  const v1::Ticket ticket = Export("r", 2, 7);
  Outcome first;
  EXPECT_TRUE(FetchAndWait(ticket, &first).ok());
  Outcome second;
  EXPECT_TRUE(absl::IsAborted(FetchAndWait(ticket, &second).status()));
}

TEST_F(LoopbackTest, ForgedTicketIsRefusedAndWritesNothing) {
  v1::Ticket ticket = Export("r", 2, 7);
  ticket.mutable_blocks(0)->set_generation(99);
  const uint64_t hash = testing::PoolHash(*decode_);
  Outcome outcome;
  EXPECT_TRUE(absl::IsPermissionDenied(FetchAndWait(ticket, &outcome).status()));
  EXPECT_EQ(testing::PoolHash(*decode_), hash);
}

TEST_F(LoopbackTest, LayoutAndModelMismatchAreFailedPreconditions) {
  kernels::KvLayout layout = TinyLayout();
  layout.block_size = 32;
  auto other = MakeLoopbackClient({.key = TestKey(), .layout = layout, .fingerprint = testing::Fingerprint()});
  const v1::Ticket ticket = Export("r", 1, 7);
  Outcome outcome;
  other->Fetch({.ticket = ticket, .destination = *decode_->AllocateLease(1), .deadline = Soon()}, outcome.Callback());
  const absl::Status s = outcome.Wait().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(s));
  EXPECT_NE(s.message().find("kv block_size: prefill 16, decode 32"), absl::string_view::npos) << s;
  v1::ModelFingerprint model = testing::Fingerprint();
  model.set_weights("other");
  auto third = MakeLoopbackClient({.key = TestKey(), .layout = TinyLayout(), .fingerprint = model});
  Outcome outcome2;
  third->Fetch({.ticket = ticket, .destination = *decode_->AllocateLease(1), .deadline = Soon()}, outcome2.Callback());
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome2.Wait().status()));
}

TEST_F(LoopbackTest, RestartIsUnavailableForOldTicketsAndServesNewOnes) {
  const v1::Ticket old_ticket = Export("r", 1, 7);
  server_->Shutdown();
  Outcome gone;
  EXPECT_TRUE(absl::IsUnavailable(FetchAndWait(old_ticket, &gone).status()));
  exporter_ = MakeExporter();
  server_ = MakeLoopbackServer(exporter_.get());
  Outcome still_gone;
  EXPECT_TRUE(absl::IsUnavailable(FetchAndWait(old_ticket, &still_gone).status()));
  Outcome fresh;
  EXPECT_TRUE(FetchAndWait(Export("r", 1, 8), &fresh).ok());
}

TEST_F(LoopbackTest, ReleasedTicketIsAborted) {
  const v1::Ticket ticket = Export("r", 1, 7);
  exporter_->Release(TransferId::Of(ticket));
  Outcome outcome;
  EXPECT_TRUE(absl::IsAborted(FetchAndWait(ticket, &outcome).status()));
}

TEST_F(LoopbackTest, PassedDeadlineIsAnErrorAndUsesNothingUp) {
  const v1::Ticket ticket = Export("r", 1, 7);
  Outcome late;
  EXPECT_TRUE(absl::IsDeadlineExceeded(FetchAndWait(ticket, &late, absl::Now() - absl::Seconds(1)).status()));
  Outcome good;
  EXPECT_TRUE(FetchAndWait(ticket, &good).ok());
}

TEST_F(LoopbackTest, TooSmallADestinationIsRefused) {
  Outcome outcome;
  client_->Fetch({.ticket = Export("r", 2, 7), .destination = *decode_->AllocateLease(1), .deadline = Soon()},
                 outcome.Callback());
  EXPECT_TRUE(absl::IsInvalidArgument(outcome.Wait().status()));
  Outcome empty;
  client_->Fetch({.ticket = Export("r2", 2, 7), .deadline = Soon()}, empty.Callback());
  EXPECT_TRUE(absl::IsInvalidArgument(empty.Wait().status()));
}

TEST_F(LoopbackTest, CancelAndShutdownEndEveryFetchOnce) {
  std::vector<Outcome> outcomes(20);
  for (int i = 0; i < 20; ++i) {
    const FetchId id = client_->Fetch({.ticket = Export(absl::StrCat("r", i), 2, i),
                                       .destination = *decode_->AllocateLease(2),
                                       .deadline = Soon()},
                                      outcomes[i].Callback());
    if (i % 2 == 0) client_->Cancel(id);
  }
  client_->Shutdown();
  for (Outcome& o : outcomes) {
    const absl::Status s = o.Wait().status();
    EXPECT_TRUE(s.ok() || absl::IsCancelled(s)) << s;
    EXPECT_EQ(o.calls(), 1);
  }
  Outcome after;
  EXPECT_TRUE(absl::IsCancelled(FetchAndWait(Export("late", 1, 1), &after).status()));
}

}  // namespace
}  // namespace baton::kvtransfer
