// A worker's membership against a router that forgets, refuses, dies and comes back.
#include "common/rpc/heartbeat.h"

#include <gtest/gtest.h>

#include <deque>

#include "common/rpc/server.h"
#include "common/status.h"

namespace baton::rpc {
namespace {

class Router : public v1::Cluster::CallbackService {
 public:
  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override {
    MutexLock lock(&mu_);
    ++registers_;
    worker_ = request->worker();
    response->set_heartbeat_ms(10);
    return Answer(context, register_answer_);
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse*) override {
    MutexLock lock(&mu_);
    ++beats_;
    last_ = *request;
    return Answer(context, std::exchange(next_beat_answer_, absl::OkStatus()));
  }
  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context, const v1::DeregisterRequest* request,
                                       v1::DeregisterResponse*) override {
    MutexLock lock(&mu_);
    ++deregisters_;
    return Answer(context, absl::OkStatus());
  }

  void Await(const std::function<bool()>& condition) {
    MutexLock lock(&mu_);
    while (!condition()) cv_.Wait(&mu_);
  }

  Mutex mu_;
  CondVar cv_;
  int registers_ = 0, beats_ = 0, deregisters_ = 0;
  v1::WorkerInfo worker_;
  v1::HeartbeatRequest last_;
  absl::Status register_answer_, next_beat_answer_;

 private:
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
    cv_.SignalAll();
    auto* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
};

HeartbeatOptions Options(const std::string& router) {
  HeartbeatOptions options;
  options.router = router;
  options.worker.set_name("prefill-0");
  options.worker.set_incarnation("abc");
  options.period = absl::Milliseconds(10);
  options.min_backoff = absl::Milliseconds(5);
  options.max_backoff = absl::Milliseconds(20);
  options.load = [] {
    v1::WorkerLoad load;
    load.set_running(3);
    return load;
  };
  return options;
}

TEST(HeartbeatTest, RegistersBeatsAndDeregisters) {
  Router router;
  auto server = Server::Start({}, {{"c", &router}});
  ASSERT_TRUE(server.ok());
  Heartbeat heartbeat(Options((*server)->address()));
  router.Await([&] { return router.beats_ >= 3; });
  EXPECT_TRUE(heartbeat.registered());
  heartbeat.SetDraining();
  router.Await([&] { return router.last_.draining(); });
  heartbeat.Deregister();
  EXPECT_FALSE(heartbeat.registered());
  MutexLock lock(&router.mu_);
  EXPECT_EQ(router.registers_, 1);
  EXPECT_EQ(router.deregisters_, 1);
  EXPECT_EQ(router.last_.load().running(), 3u);
  EXPECT_EQ(router.last_.name(), "prefill-0");
}

TEST(HeartbeatTest, NotFoundRegistersAgainWithTheSameIncarnation) {
  Router router;
  auto server = Server::Start({}, {{"c", &router}});
  ASSERT_TRUE(server.ok());
  Heartbeat heartbeat(Options((*server)->address()));
  router.Await([&] { return router.beats_ >= 1; });
  {
    MutexLock lock(&router.mu_);
    router.next_beat_answer_ = absl::NotFoundError("who?");
  }
  router.Await([&] { return router.registers_ >= 2; });
  MutexLock lock(&router.mu_);
  EXPECT_EQ(router.worker_.incarnation(), "abc");
}

TEST(HeartbeatTest, RefusalIsReportedOnceAndTriedAgain) {
  Router router;
  router.register_answer_ = absl::FailedPreconditionError("weights differ");
  auto server = Server::Start({}, {{"c", &router}});
  ASSERT_TRUE(server.ok());
  auto options = Options((*server)->address());
  Mutex mu;
  std::vector<absl::StatusCode> changes;
  options.on_change = [&](const absl::Status& status) {
    MutexLock lock(&mu);
    changes.push_back(status.code());
  };
  Heartbeat heartbeat(options);
  router.Await([&] { return router.registers_ >= 3; });
  EXPECT_FALSE(heartbeat.registered());
  {
    MutexLock lock(&router.mu_);
    router.register_answer_ = absl::OkStatus();
  }
  router.Await([&] { return router.beats_ >= 1; });
  MutexLock lock(&mu);
  EXPECT_EQ(changes, (std::vector<absl::StatusCode>{absl::StatusCode::kFailedPrecondition, absl::StatusCode::kOk}));
}

TEST(HeartbeatTest, SurvivesARouterThatComesBack) {
  auto router = std::make_unique<Router>();
  auto server = Server::Start({}, {{"c", router.get()}});
  ASSERT_TRUE(server.ok());
  ServerOptions same_port;
  same_port.listen = (*server)->address();
  Heartbeat heartbeat(Options(same_port.listen));
  router->Await([&] { return router->beats_ >= 1; });
  server->reset();
  Router second;
  second.next_beat_answer_ = absl::NotFoundError("new here");
  auto again = Server::Start(same_port, {{"c", &second}});
  ASSERT_TRUE(again.ok()) << again.status();
  second.Await([&] { return second.registers_ >= 1 && second.beats_ >= 2; });
}

TEST(HeartbeatTest, StopsAtOnceWhenTheRouterIsMissing) {
  auto options = Options("127.0.0.1:1");
  options.min_backoff = options.max_backoff = absl::Hours(1);
  Heartbeat heartbeat(options);
  heartbeat.Deregister();  // returns although the next try is an hour away
  EXPECT_FALSE(heartbeat.registered());
}

}  // namespace
}  // namespace baton::rpc
