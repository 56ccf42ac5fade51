// One client over UCX and gRPC: which it takes, and what happens when a link dies under a fetch.
#include "kvtransfer/failover_client.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/locality.h"
#include "kvtransfer/ucx_transport.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::Eventually;
using testing::Outcome;
using testing::Soon;

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    from_ = testing::MakePool(testing::SmolLayout(), 16);
    to_ = testing::MakePool(testing::SmolLayout(), 16);
    exporter_ = std::make_unique<Exporter>(Exporter::Options{.worker_name = "p0",
                                                             .incarnation = RandomIncarnation(),
                                                             .key = testing::TestKey(),
                                                             .layout = testing::SmolLayout(),
                                                             .fingerprint = testing::Fingerprint(),
                                                             .reap_interval = absl::Milliseconds(20)});
    UcxOptions ucx;
    ucx.before_block_for_test = [this](TransferId, size_t block) {
      if (static_cast<int>(block) == pause_ucx_at_) {
        paused_ = true;
        while (!resume_) absl::SleepFor(absl::Milliseconds(1));
      }
    };
    ucx_server_ = *UcxServer::Start(exporter_.get(), ucx);
    grpc_server_ = *GrpcKvServer::Start(exporter_.get(), {});
    const ReceiverOptions receiver{.key = testing::TestKey(),
                                   .layout = testing::SmolLayout(),
                                   .fingerprint = testing::Fingerprint(),
                                   .consumer = RandomIncarnation()};
    UcxOptions client;
    client.connect_backoff = absl::Milliseconds(1);
    std::vector<std::unique_ptr<TransportClient>> clients;
    clients.push_back(*UcxClient::Start(receiver, client));
    clients.push_back(MakeGrpcKvClient(receiver, {}));
    FailoverOptions options;
    options.min_rest = rest_;
    options.allowed = [this](const v1::Endpoint& e) {
      return e.transport() == "ucx" && !ucx_allowed_ ? absl::UnavailableError("too slow") : absl::OkStatus();
    };
    options.on_failover = [this](const v1::Endpoint& e, absl::string_view next, const absl::Status&) {
      EXPECT_EQ(e.transport(), "ucx");
      EXPECT_EQ(next, "grpc");
      ++failovers_;
    };
    client_ = std::make_unique<FailoverClient>(std::move(clients), options);
  }
  void TearDown() override {
    resume_ = true;
    client_->Shutdown();
    ucx_server_->Shutdown();
    grpc_server_->Shutdown();
    EXPECT_EQ(exporter_->counters().in_flight, 0u);
    EXPECT_EQ(exporter_->counters().impossible, 0u);
    exporter_->ReleaseAll();
    testing::ExpectAllFree(*from_);
    testing::ExpectAllFree(*to_);
  }
  v1::Ticket Export(int64_t blocks, uint64_t seed, const std::string& request) {
    auto ticket = exporter_->ExportSealed({.request_id = request,
                                           .epoch = 1,
                                           .num_tokens = static_cast<uint32_t>(blocks * 16),
                                           .lease = absl::Seconds(20)},
                                          testing::FilledLease(from_.get(), blocks, seed));
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return *ticket;
  }
  FetchRequest Ask(const v1::Ticket& ticket) {
    FetchRequest request;
    request.ticket = ticket;
    request.destination = *to_->AllocateLease(ticket.blocks_size());
    request.deadline = Soon();
    return request;
  }
  // Fetches a fresh export; the transport that carried it.
  std::string FetchOnce(const std::string& request) {
    Outcome outcome;
    client_->Fetch(Ask(Export(4, 7, request)), outcome.Callback());
    auto stats = outcome.Wait();
    EXPECT_TRUE(stats.ok()) << stats.status();
    EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 4, 7));
    return stats.ok() ? stats->transport : "";
  }

  absl::Duration rest_ = absl::Minutes(1);
  std::atomic<int> pause_ucx_at_{-1};
  std::atomic<bool> paused_{false}, resume_{false}, ucx_allowed_{true};
  std::atomic<int> failovers_{0};
  std::shared_ptr<kvcache::BlockPool> from_, to_;
  std::unique_ptr<Exporter> exporter_;
  std::unique_ptr<UcxServer> ucx_server_;
  std::unique_ptr<GrpcKvServer> grpc_server_;
  std::unique_ptr<FailoverClient> client_;
};

TEST_F(FailoverTest, TakesWhatTheTicketPrefersAndBothGiveTheSameBytes) {
  const v1::Ticket ticket = Export(2, 1, "order");
  EXPECT_EQ(ticket.endpoint().transport(), "ucx");
  ASSERT_EQ(ticket.fallbacks_size(), 1);
  EXPECT_EQ(ticket.fallbacks(0).transport(), "grpc");
  EXPECT_EQ(ticket.endpoint().locality(), NetworkLocality());
  EXPECT_EQ(client_->Preferred(ticket), "ucx");
  EXPECT_EQ(FetchOnce("a"), "ucx");
  ucx_allowed_ = false;
  EXPECT_EQ(FetchOnce("b"), "grpc");
  EXPECT_EQ(failovers_, 0) << "a link that is not taken did not break";
}

TEST_F(FailoverTest, ALinkThatDiesInTheMiddleOfAFetchIsReplacedAndTheSameFetchSucceeds) {
  pause_ucx_at_ = 6;
  Outcome outcome;
  client_->Fetch(Ask(Export(12, 3, "cut")), outcome.Callback());
  ASSERT_TRUE(Eventually([&] { return paused_.load(); }));
  std::thread cut([&] { ucx_server_->Shutdown(); });
  absl::SleepFor(absl::Milliseconds(20));
  resume_ = true;
  auto stats = outcome.Wait();
  cut.join();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->transport, "grpc");
  EXPECT_EQ(stats->blocks, 12u);
  EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 12, 3));
  EXPECT_EQ(failovers_, 1);
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; }));
  // The dead link rests; nobody waits for it meanwhile.
  EXPECT_EQ(FetchOnce("next"), "grpc");
  EXPECT_EQ(failovers_, 1);
}

TEST_F(FailoverTest, NobodyAtTheUcxAddressMeansGrpc) {
  const v1::Ticket ticket = Export(4, 5, "gone");
  ucx_server_->Shutdown();
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->transport, "grpc");
  EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 4, 5));
}

TEST_F(FailoverTest, WithoutAnyWayTheErrorNamesEachReason) {
  v1::Ticket ticket = Export(2, 1, "far");
  ticket.mutable_endpoint()->set_locality("another host");
  ticket.mutable_fallbacks(0)->set_transport("carrier pigeon");
  SignTicket(testing::TestKey(), &ticket);
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(outcome.Wait().status().message());
  EXPECT_NE(message.find("another host's loopback"), std::string::npos) << message;
  EXPECT_NE(message.find("carrier pigeon"), std::string::npos) << message;
}

TEST_F(FailoverTest, OtherErrorsAreNotTriedAgain) {
  v1::Ticket ticket = Export(2, 1, "forged");
  ticket.mutable_mac()->back() ^= 1;
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(failovers_, 0);
}

TEST_F(FailoverTest, CancelReachesTheTransportThatRuns) {
  pause_ucx_at_ = 3;
  Outcome outcome;
  const FetchId id = client_->Fetch(Ask(Export(12, 3, "cancelled")), outcome.Callback());
  ASSERT_TRUE(Eventually([&] { return paused_.load(); }));
  client_->Cancel(id);
  resume_ = true;
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(failovers_, 0);
  EXPECT_TRUE(Eventually([&] { return to_->ledger().quarantined == 0; }));
}

}  // namespace
}  // namespace baton::kvtransfer
