// The reactor against a real gRPC server and clients in this process.
#include "common/rpc/stream_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/worker.grpc.pb.h"

namespace baton::rpc {
namespace {

using Stream = StreamWriter<v1::PrefillEvent>;

// Hands every stream it opens to the test.
class Service : public v1::PrefillWorker::CallbackService {
 public:
  explicit Service(StreamWriterOptions options = {}) : options_(options) {}

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext*,
                                                      const v1::PrefillRequest*) override {
    auto alive = std::make_shared<int>(0);
    auto stream = Stream::Create(options_, [this, alive] {
      MutexLock lock(&mu_);
      ++cancels_;
      cv_.SignalAll();
    });
    MutexLock lock(&mu_);
    stream_ = stream;
    alive_ = alive;
    cv_.SignalAll();
    return stream.get();
  }

  std::shared_ptr<Stream> AwaitStream() {
    MutexLock lock(&mu_);
    while (stream_ == nullptr) cv_.Wait(&mu_);
    return std::exchange(stream_, nullptr);
  }
  void AwaitCancels(int n) {
    MutexLock lock(&mu_);
    while (cancels_ < n) cv_.Wait(&mu_);
  }
  int cancels() const {
    MutexLock lock(&mu_);
    return cancels_;
  }
  // True once gRPC dropped what the callback captured: the call is over.
  bool AwaitDone() {
    for (int i = 0; i < 5000; ++i) {
      {
        MutexLock lock(&mu_);
        if (alive_.expired()) return true;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }

 private:
  const StreamWriterOptions options_;
  mutable Mutex mu_;
  CondVar cv_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);
  std::weak_ptr<int> alive_ ABSL_GUARDED_BY(mu_);
  int cancels_ ABSL_GUARDED_BY(mu_) = 0;
};

struct Fixture {
  explicit Fixture(StreamWriterOptions options = {}) : service(options) {
    auto started = Server::Start({}, {{"baton.v1.PrefillWorker", &service}});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    stub = v1::PrefillWorker::NewStub(CreateChannel(server->address()));
  }
  Service service;
  std::unique_ptr<Server> server;
  std::unique_ptr<v1::PrefillWorker::Stub> stub;
};

v1::PrefillEvent Event(uint32_t index, size_t padding = 0) {
  v1::PrefillEvent event;
  event.mutable_token()->set_token_index(index);
  for (size_t i = 0; i < padding / 8; ++i) event.mutable_token()->add_top_logprobs()->set_logprob(1);
  return event;
}

TEST(StreamWriterTest, EverythingArrivesInOrderThenTheStatus) {
  Fixture f;
  grpc::ClientContext context;
  auto reader = f.stub->Prefill(&context, {});
  auto stream = f.service.AwaitStream();
  std::thread producer([&] {
    for (uint32_t i = 0; i < 2000; ++i) EXPECT_TRUE(stream->Push(Event(i)));
    stream->Finish(absl::AbortedError("gone"));
    EXPECT_FALSE(stream->Push(Event(0)));
    stream->Finish(absl::OkStatus());  // ignored
  });
  v1::PrefillEvent event;
  uint32_t next = 0;
  while (reader->Read(&event)) EXPECT_EQ(event.token().token_index(), next++);
  EXPECT_EQ(next, 2000u);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "gone");
  producer.join();
  EXPECT_TRUE(f.service.AwaitDone());
  EXPECT_EQ(f.service.cancels(), 0);
}

TEST(StreamWriterTest, FinishInsideTheMethodWorks) {
  struct Immediate : v1::PrefillWorker::CallbackService {
    grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext*,
                                                        const v1::PrefillRequest*) override {
      auto stream = Stream::Create({}, nullptr);
      stream->Push(Event(1));
      stream->Finish(absl::InvalidArgumentError("no"));
      return stream.get();
    }
  } service;
  auto server = Server::Start({}, {{"s", &service}});
  ASSERT_TRUE(server.ok());
  auto stub = v1::PrefillWorker::NewStub(CreateChannel((*server)->address()));
  grpc::ClientContext context;
  auto reader = stub->Prefill(&context, {});
  v1::PrefillEvent event;
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(StreamWriterTest, CancelReachesTheOwnerOnce) {
  Fixture f;
  grpc::ClientContext context;
  auto reader = f.stub->Prefill(&context, {});
  auto stream = f.service.AwaitStream();
  stream->Push(Event(0));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  f.service.AwaitCancels(1);
  EXPECT_TRUE(stream->cancelled());
  EXPECT_FALSE(stream->Push(Event(1)));
  stream->Finish(absl::OkStatus());
  EXPECT_TRUE(f.service.AwaitDone());
  EXPECT_EQ(f.service.cancels(), 1);
}

TEST(StreamWriterTest, DeadlineReachesTheOwner) {
  Fixture f;
  grpc::ClientContext context;
  SetDeadline(&context, absl::Now() + absl::Milliseconds(30));
  auto reader = f.stub->Prefill(&context, {});
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  f.service.AwaitCancels(1);
  EXPECT_TRUE(f.service.AwaitDone());
}

// A reader that never reads: flow control stops the transport, then the buffer fills, then the call ends. Nothing
// blocks.
TEST(StreamWriterTest, SlowReaderIsCutOff) {
  Fixture f({.max_buffered = 16});
  grpc::ClientContext context;
  auto reader = f.stub->Prefill(&context, {});
  auto stream = f.service.AwaitStream();
  bool overflowed = false;
  for (uint32_t i = 0; i < 20000 && !overflowed; ++i) {
    overflowed = !stream->Push(Event(i, 4096));
    if (!overflowed && stream->buffered() > 8) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_LE(stream->buffered(), 16u);
  }
  EXPECT_TRUE(overflowed);
  EXPECT_EQ(f.service.cancels(), 1);
  v1::PrefillEvent event;
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(f.service.AwaitDone());
}

TEST(StreamWriterTest, ServerShutdownCancelsOpenStreams) {
  Fixture f;
  grpc::ClientContext context;
  auto reader = f.stub->Prefill(&context, {});
  auto stream = f.service.AwaitStream();
  f.server->Shutdown(absl::ZeroDuration());
  f.service.AwaitCancels(1);
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(f.service.AwaitDone());
  EXPECT_FALSE(stream->Push(Event(0)));
}

// What was finished but could not be delivered is told too: a ticket in it would otherwise stay held.
TEST(StreamWriterTest, CancelAfterFinishIsToldWhenTheEndWasNotSent) {
  Fixture f;
  grpc::ClientContext context;
  auto reader = f.stub->Prefill(&context, {});
  auto stream = f.service.AwaitStream();
  // More than flow control lets out, so that the end waits behind it.
  for (uint32_t i = 0; i < 100; ++i) stream->Push(Event(i, 65536));
  stream->Finish(absl::OkStatus());
  context.TryCancel();
  f.service.AwaitCancels(1);
  reader->Finish();
  EXPECT_TRUE(f.service.AwaitDone());
}

TEST(StreamWriterTest, RandomCancelsWhileThreadsPush) {
  Fixture f({.max_buffered = 64});
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    auto reader = f.stub->Prefill(&context, {});
    auto stream = f.service.AwaitStream();
    std::thread a([&] {
      for (uint32_t k = 0; k < 50; ++k) stream->Push(Event(k));
      stream->Finish(absl::OkStatus());
    });
    std::thread b([&] {
      for (uint32_t k = 0; k < 50; ++k) stream->Push(Event(k));
    });
    v1::PrefillEvent event;
    for (int k = 0; k < i % 7 && reader->Read(&event); ++k) {
    }
    if (i % 2 == 0) context.TryCancel();
    a.join();
    b.join();
    while (reader->Read(&event)) {
    }
    reader->Finish();
    EXPECT_TRUE(f.service.AwaitDone());
  }
}

}  // namespace
}  // namespace baton::rpc
