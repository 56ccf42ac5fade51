// A worker registered with several routers, which come, are forgotten by the registry, and die.
#include "common/membership/registrations.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/server.h"
#include "common/status.h"
#include "tests/common/membership/etcd_process.h"

namespace baton::membership {
namespace {

// A router's membership service: counts, and answers with one peer.
class Router : public v1::Cluster::CallbackService {
 public:
  explicit Router(std::string peer, absl::Status registration = absl::OkStatus())
      : peer_(std::move(peer)), registration_(std::move(registration)) {
    auto server = rpc::Server::Start({.listen = "127.0.0.1:0"}, {{"baton.v1.Cluster", this}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = server_->address();
  }
  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest*,
                                     v1::RegisterResponse* response) override {
    response->set_heartbeat_ms(20);
    return Answer(context, registration_);
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override {
    ++beats_;
    draining_ = request->draining();
    response->add_peers()->set_name(peer_);
    return Answer(context, absl::OkStatus());
  }
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context, const v1::DeregisterRequest*,
                                       v1::DeregisterResponse*) override {
    ++deregisters_;
    return Answer(context, absl::OkStatus());
  }
  void Die() { server_->Shutdown(absl::ZeroDuration()); }

  std::atomic<int> beats_{0}, deregisters_{0};
  std::atomic<bool> draining_{false};
  std::string address_;

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  const std::string peer_;
  const absl::Status registration_;
  std::unique_ptr<rpc::Server> server_;
};

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(10));
  return condition();
}

class RegistrationsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Registrations> Start(const v1::Config& config) {
    RegistrationsOptions options;
    options.heartbeat.worker.set_name("decode-0");
    options.heartbeat.worker.set_incarnation("abc");
    options.heartbeat.min_backoff = absl::Milliseconds(5);
    options.heartbeat.max_backoff = absl::Milliseconds(50);
    options.heartbeat.on_answer = [this](const v1::HeartbeatResponse& answer) {
      MutexLock lock(&mu_);
      peers_ = absl::StrJoin(answer.peers(), " ",
                             [](std::string* out, const v1::KvPeer& p) { absl::StrAppend(out, p.name()); });
    };
    options.on_change = [this](const std::string& router, const absl::Status& status, int others) {
      MutexLock lock(&mu_);
      if (absl::IsFailedPrecondition(status)) refused_ = absl::StrCat(router, " others ", others);
    };
    auto registrations = Registrations::Start(config, std::move(options));
    EXPECT_TRUE(registrations.ok()) << registrations.status();
    return registrations.ok() ? *std::move(registrations) : nullptr;
  }
  std::string peers() {
    MutexLock lock(&mu_);
    return peers_;
  }
  std::string refused() {
    MutexLock lock(&mu_);
    return refused_;
  }

 private:
  Mutex mu_;
  std::string peers_ ABSL_GUARDED_BY(mu_), refused_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RegistrationsTest, AListOfRoutersGetsHeartbeatsAndTheirPeersAreJoined) {
  Router a("p0"), b("p1");
  v1::Config config;
  config.set_membership("embedded");
  config.set_router(absl::StrCat(b.address_, ", ", a.address_));
  auto registrations = Start(config);
  EXPECT_TRUE(Eventually([&] { return registrations->registered() == 2 && peers() == "p0 p1"; })) << peers();
  registrations->SetDraining();
  EXPECT_TRUE(Eventually([&] { return a.draining_ && b.draining_; }));
  registrations->Deregister();
  EXPECT_EQ(a.deregisters_ + b.deregisters_, 2);
}

TEST_F(RegistrationsTest, ARouterThatRefusesIsToldWithHowManyOthersHaveTheWorker) {
  Router a("p0"), b("p1", absl::FailedPreconditionError("another model"));
  v1::Config config;
  config.set_membership("embedded");
  config.set_router(a.address_);
  auto registrations = Start(config);
  EXPECT_TRUE(Eventually([&] { return registrations->registered() == 1; }));
  registrations.reset();
  config.set_router(absl::StrCat(a.address_, ",", b.address_));
  registrations = Start(config);
  EXPECT_TRUE(Eventually([&] { return !refused().empty(); }));
  EXPECT_EQ(refused().substr(0, b.address_.size()), b.address_);
  EXPECT_TRUE(Eventually([&] { return registrations->registered() == 1; }));
}

TEST_F(RegistrationsTest, ARouterThatTheRegistryLostIsKeptWhileItAnswers) {
  testing::EtcdProcess etcd;
  Router a("p0"), b("p1");
  auto announced_a = Announce(etcd.Config(), a.address_);
  auto announced_b = Announce(etcd.Config(), b.address_);
  ASSERT_TRUE(announced_a.ok() && announced_b.ok());
  auto registrations = Start(etcd.Config());
  ASSERT_TRUE(Eventually([&] { return registrations->registered() == 2; }));
  announced_a->reset();
  absl::SleepFor(absl::Seconds(2));
  const int before = a.beats_;
  EXPECT_TRUE(Eventually([&] { return a.beats_ > before + 3; })) << "it answers: it is not given up";
  EXPECT_EQ(registrations->registered(), 2);
  a.Die();
  EXPECT_TRUE(Eventually([&] { return registrations->registered() == 1; }));
  const int b_before = b.beats_;
  EXPECT_TRUE(Eventually([&] { return b.beats_ > b_before + 3; }));
}

TEST_F(RegistrationsTest, AddressesThatAreNone) {
  v1::Config config;
  config.set_membership("embedded");
  for (const char* router : {"", " , ", "localhost", "127.0.0.1:1,nowhere"}) {
    config.set_router(router);
    EXPECT_TRUE(absl::IsInvalidArgument(Registrations::Start(config, {}).status())) << router;
  }
}

}  // namespace
}  // namespace baton::membership
