// Feeds over real gRPC, with calls that the test pushes into.
#include "decode_worker/feeds.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/worker.grpc.pb.h"

namespace baton::decode_worker {
namespace {

struct Service : v1::DecodeWorker::CallbackService {
  explicit Service(const Feeds::Options& options) : feeds(options) {}
  grpc::ServerWriteReactor<v1::FeedBatch>* Feed(grpc::CallbackServerContext* context,
                                                const v1::FeedRequest* request) override {
    return feeds.Open(context, *request);
  }
  Feeds feeds;
};

// A call's own stream.
struct Own : rpc::EventStream<v1::DecodeEvent> {
  bool Push(v1::DecodeEvent event) override {
    events.push_back(std::move(event));
    return true;
  }
  void Finish(absl::Status status) override { ends.push_back(std::move(status)); }
  bool cancelled() const override { return false; }
  std::vector<v1::DecodeEvent> events;
  std::vector<absl::Status> ends;
};

struct FeedsTest : ::testing::Test {
  void Start(const Feeds::Options& options = {}) {
    service = std::make_unique<Service>(options);
    auto started = rpc::Server::Start({}, {{"baton.v1.DecodeWorker", service.get()}});
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    stub = v1::DecodeWorker::NewStub(rpc::CreateChannel(server->address()));
  }
  ~FeedsTest() override {
    if (server != nullptr) server->Shutdown(absl::ZeroDuration());
  }
  // Open when the headers are here.
  std::unique_ptr<grpc::ClientReader<v1::FeedBatch>> Open(const std::string& id, grpc::ClientContext* context) {
    v1::FeedRequest request;
    request.set_feed_id(id);
    auto reader = stub->Feed(context, request);
    reader->WaitForInitialMetadata();
    return reader;
  }
  std::shared_ptr<rpc::EventStream<v1::DecodeEvent>> Join(const std::string& id, uint64_t call, Own** own,
                                                          std::function<void()> on_cancel = [] {}) {
    v1::FeedPlace place;
    place.set_feed_id(id);
    place.set_call(call);
    auto made = std::make_shared<Own>();
    *own = made.get();
    return service->feeds.Stream(place, [&](std::function<void()>) { return made; }, std::move(on_cancel));
  }
  static v1::DecodeEvent Token(uint32_t index, size_t padding = 0) {
    v1::DecodeEvent event;
    event.mutable_token()->set_token_index(index);
    for (size_t i = 0; i < padding / 8; ++i) event.mutable_token()->add_top_logprobs()->set_logprob(1);
    return event;
  }

  std::unique_ptr<Service> service;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<v1::DecodeWorker::Stub> stub;
};

TEST_F(FeedsTest, AStepOfAllCallsIsOneMessage) {
  Start();
  grpc::ClientContext context;
  auto reader = Open("f", &context);
  Own* own[3];
  std::shared_ptr<rpc::EventStream<v1::DecodeEvent>> calls[3];
  for (uint64_t c = 0; c < 3; ++c) calls[c] = Join("f", c + 1, &own[c]);
  for (uint32_t step = 0; step < 2; ++step) {
    for (auto& call : calls) EXPECT_TRUE(call->Push(Token(step)));
    service->feeds.Flush();
    v1::FeedBatch batch;
    ASSERT_TRUE(reader->Read(&batch));
    ASSERT_EQ(batch.events_size(), 3);
    for (int c = 0; c < 3; ++c) {
      EXPECT_EQ(batch.events(c).call(), static_cast<uint64_t>(c + 1));
      EXPECT_EQ(batch.events(c).event().token().token_index(), step);
    }
  }
  calls[1]->Finish(absl::AbortedError("x"));
  EXPECT_FALSE(calls[1]->Push(Token(2)));
  ASSERT_EQ(own[1]->events.size(), 1u);
  EXPECT_EQ(own[1]->events[0].in_feed().events(), 2u);
  ASSERT_EQ(own[1]->ends.size(), 1u);
  EXPECT_EQ(own[1]->ends[0].code(), absl::StatusCode::kAborted);
  for (int c : {0, 2}) calls[c]->Finish(absl::OkStatus());
}

TEST_F(FeedsTest, WhatACallHeldBackLeavesWithItsEnd) {
  Start();
  grpc::ClientContext context;
  auto reader = Open("f", &context);
  Own* own;
  auto call = Join("f", 1, &own);
  EXPECT_TRUE(call->Push(Token(7)));
  call->Finish(absl::OkStatus());  // and no step follows
  v1::FeedBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  ASSERT_EQ(batch.events_size(), 1);
  EXPECT_EQ(batch.events(0).event().token().token_index(), 7u);
}

TEST_F(FeedsTest, ACallThatNamesNoOpenFeedHasItsOwnStream) {
  Start();
  Own* own;
  auto call = Join("unknown", 1, &own);
  EXPECT_EQ(call.get(), own);
  call = Join("", 1, &own);
  EXPECT_EQ(call.get(), own);
}

TEST_F(FeedsTest, ARouterThatGoesCancelsItsCallsAndNoOthers) {
  Start();
  grpc::ClientContext context, other;
  auto reader = Open("f", &context);
  auto stays = Open("g", &other);
  Own* own;
  std::atomic<int> cancels{0}, of_other{0};
  auto a = Join("f", 1, &own, [&] { ++cancels; });
  auto b = Join("f", 2, &own, [&] { ++cancels; });
  auto c = Join("g", 1, &own, [&] { ++of_other; });
  context.TryCancel();
  for (int i = 0; i < 4000 && cancels < 2; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(cancels, 2);
  EXPECT_EQ(of_other, 0);
  EXPECT_FALSE(a->Push(Token(0)));
  EXPECT_TRUE(c->Push(Token(0)));
  EXPECT_EQ(Join("f", 3, &own).get(), own) << "the feed is gone";
  for (auto* call : {&a, &b, &c}) (*call)->Finish(absl::OkStatus());
  EXPECT_EQ(cancels, 2);
}

TEST_F(FeedsTest, ARouterThatDoesNotReadLosesItsCallsAndHoldsLittle) {
  Start({.max_buffered = 16});
  grpc::ClientContext context;
  auto reader = Open("f", &context);
  Own* own;
  int cancels = 0;
  auto call = Join("f", 1, &own, [&] { ++cancels; });
  bool overflowed = false;
  for (uint32_t i = 0; i < 20000 && !overflowed; ++i) {
    overflowed = !call->Push(Token(i, 65536));
    service->feeds.Flush();
    EXPECT_LE(service->feeds.buffered(), 16u);
    if (!overflowed && service->feeds.buffered() > 8) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(overflowed);
  EXPECT_EQ(cancels, 1);
  call->Finish(absl::OkStatus());
  v1::FeedBatch batch;
  while (reader->Read(&batch)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(FeedsTest, ADrainEndsAFeedBehindItsLastCall) {
  Start();
  grpc::ClientContext context, idle, late;
  auto reader = Open("f", &context);
  auto without = Open("g", &idle);
  Own* own;
  auto call = Join("f", 1, &own);
  service->feeds.Drain();
  v1::FeedBatch batch;
  EXPECT_FALSE(without->Read(&batch));
  EXPECT_TRUE(without->Finish().ok());
  EXPECT_EQ(Join("f", 2, &own).get(), own) << "nobody joins any more";
  EXPECT_TRUE(call->Push(Token(7)));
  call->Finish(absl::OkStatus());
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.events(0).event().token().token_index(), 7u);
  EXPECT_FALSE(reader->Read(&batch));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Open("h", &late)->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FeedsTest, AFeedHasAnIdOfItsOwn) {
  Start();
  grpc::ClientContext first, second, none, long_one;
  auto reader = Open("f", &first);
  EXPECT_EQ(Open("f", &second)->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Open("", &none)->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Open(std::string(65, 'x'), &long_one)->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Own* own;
  auto call = Join("f", 1, &own);
  EXPECT_NE(call.get(), own) << "the first one is still open";
  call->Finish(absl::OkStatus());
}

}  // namespace
}  // namespace baton::decode_worker
