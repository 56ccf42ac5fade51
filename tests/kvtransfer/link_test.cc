// How a pair of workers meets: measured before traffic, anew after a restart, with bounded retry.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>

#include "kvtransfer/failover_client.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/link_service.h"
#include "kvtransfer/link_tester.h"
#include "kvtransfer/ucx_transport.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::Eventually;

// A worker that exports: UCX and gRPC.
struct Exporting {
  explicit Exporting(const std::string& name)
      : exporter({.worker_name = name,
                  .incarnation = RandomIncarnation(),
                  .key = testing::TestKey(),
                  .layout = testing::SmolLayout(),
                  .fingerprint = testing::Fingerprint(),
                  .reap_interval = absl::Milliseconds(20)}),
        links(&exporter) {
    ucx = *UcxServer::Start(&exporter, {});
    GrpcKvOptions options;
    options.link_service = &links;
    grpc = *GrpcKvServer::Start(&exporter, options);
  }
  ~Exporting() {
    ucx->Shutdown();
    grpc->Shutdown();
    EXPECT_EQ(exporter.counters().in_flight, 0u);
  }
  v1::KvPeer Peer() const {
    v1::KvPeer peer;
    peer.set_name(exporter.options().worker_name);
    peer.set_incarnation(exporter.options().incarnation);
    *peer.add_endpoints() = ucx->endpoint();
    *peer.add_endpoints() = grpc->endpoint();
    return peer;
  }
  Exporter exporter;
  LinkService links;
  std::unique_ptr<UcxServer> ucx;
  std::unique_ptr<GrpcKvServer> grpc;
};

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }
  void Start(LinkOptions options = {}) {
    const ReceiverOptions receiver{.key = testing::TestKey(),
                                   .layout = testing::SmolLayout(),
                                   .fingerprint = testing::Fingerprint(),
                                   .consumer = RandomIncarnation()};
    std::vector<std::unique_ptr<TransportClient>> clients;
    clients.push_back(*UcxClient::Start(receiver, {}));
    clients.push_back(MakeGrpcKvClient(receiver, {}));
    FailoverOptions failover;
    failover.allowed = [this](const v1::Endpoint& e) { return tester_->Allowed(e); };
    client_ = std::make_unique<FailoverClient>(std::move(clients), failover);
    options.layout = testing::SmolLayout();
    options.min_backoff = absl::Milliseconds(5);
    options.on_result = [this](const v1::KvLink&) { ++results_; };
    tester_ = std::make_unique<LinkTester>(options, client_.get());
  }
  void TearDown() override {
    tester_->Stop();
    client_.reset();
    tester_.reset();
  }
  v1::KvLink Only() {
    const std::vector<v1::KvLink> links = tester_->links();
    return links.size() == 1 ? links[0] : v1::KvLink();
  }
  std::atomic<int> results_{0};
  std::unique_ptr<FailoverClient> client_;
  std::unique_ptr<LinkTester> tester_;
};

TEST_F(LinkTest, APairIsMeasuredWhenItMeetsAndARestartedWorkerIsMetAnew) {
  Start();
  auto first = std::make_unique<Exporting>("p0");
  tester_->SetPeers({first->Peer()});
  ASSERT_TRUE(Eventually([&] { return Only().state() == "ok"; })) << Only().ShortDebugString();
  EXPECT_EQ(Only().transport(), "ucx");
  EXPECT_NE(Only().detail(), "");
  EXPECT_GT(Only().gigabytes_per_second(), 0);
  EXPECT_EQ(first->exporter.counters().completed, 2u) << "one fetch makes the connection, the other is measured";
  tester_->SetPeers({first->Peer()});
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(results_, 1) << "a known peer is not tested again";

  first.reset();
  Exporting second("p0");
  tester_->SetPeers({second.Peer()});
  ASSERT_TRUE(Eventually([&] { return Only().state() == "ok"; })) << Only().ShortDebugString();
  EXPECT_EQ(Only().incarnation(), second.exporter.options().incarnation);
  tester_->SetPeers({});
  EXPECT_TRUE(tester_->links().empty());
}

TEST_F(LinkTest, AFailedTestIsTriedAgainUntilItWorks) {
  Start();
  Exporting worker("p0");
  v1::KvPeer wrong = worker.Peer();
  wrong.set_incarnation(RandomIncarnation());
  tester_->SetPeers({wrong});
  ASSERT_TRUE(Eventually([&] { return results_ >= 3; })) << "bounded pauses, no ban";
  EXPECT_EQ(Only().state(), "failed");
  EXPECT_NE(Only().error().find("not the one that was meant"), std::string::npos) << Only().error();
  tester_->SetPeers({worker.Peer()});
  EXPECT_TRUE(Eventually([&] { return Only().state() == "ok"; })) << Only().ShortDebugString();
}

TEST_F(LinkTest, BelowTheFloorItWarns) {
  LinkOptions options;
  options.floor_bytes_per_second = 1e15;
  Start(options);
  Exporting worker("p0");
  tester_->SetPeers({worker.Peer()});
  ASSERT_TRUE(Eventually([&] { return Only().state() == "slow"; })) << Only().ShortDebugString();
  EXPECT_NE(Only().error().find("the floor is"), std::string::npos);
  EXPECT_TRUE(tester_->Allowed(worker.ucx->endpoint()).ok());
}

TEST_F(LinkTest, BelowTheFloorItRefusesEachTransportAndMeasuresAgainLater) {
  LinkOptions options;
  options.floor_bytes_per_second = 1e15;
  options.refuse_below_floor = true;
  options.refusal_time = absl::Seconds(1);
  Start(options);
  Exporting worker("p0");
  tester_->SetPeers({worker.Peer()});
  ASSERT_TRUE(Eventually([&] {
    return !tester_->Allowed(worker.ucx->endpoint()).ok() && !tester_->Allowed(worker.grpc->endpoint()).ok();
  }));
  EXPECT_EQ(Only().state(), "refused");
  const uint64_t completed = worker.exporter.counters().completed;
  EXPECT_TRUE(Eventually([&] { return worker.exporter.counters().completed > completed; })) << "measured again";
}

}  // namespace
}  // namespace baton::kvtransfer
