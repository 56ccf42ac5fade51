#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/channel.h"
#include "proto/worker.grpc.pb.h"

namespace baton::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EchoService : public v1::Worker::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetWorkerStatus(grpc::CallbackServerContext* context, const v1::GetWorkerStatusRequest*,
                                            v1::WorkerStatus* response) override {
    response->set_name(std::string(answer_bytes, 'x'));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  size_t answer_bytes = 1;
};

// grpc.health.v1 by hand (Debian has no C++ stubs of it): field 1 of the request is the service's name, field 1 of the
// answer its status: 1 SERVING, 2 NOT_SERVING.
int Health(const std::string& address, const std::string& service, grpc::StatusCode* code = nullptr) {
  grpc::GenericStub stub(CreateChannel(address));
  grpc::ClientContext context;
  SetDeadline(&context, absl::Now() + absl::Seconds(10));
  grpc::CompletionQueue queue;
  std::string bytes;
  if (!service.empty()) bytes = "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (code != nullptr) *code = status.error_code();
  if (!status.ok()) return -1;
  std::vector<grpc::Slice> slices;
  response.Dump(&slices);
  std::string answer;
  for (const auto& s : slices) answer.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return answer.size() == 2 && answer[0] == 0x08 ? answer[1] : 0;
}

TEST(ServerTest, HealthFollowsServing) {
  EchoService service;
  auto server = Server::Start({}, {{"baton.v1.Worker", &service}});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = (*server)->address();
  EXPECT_EQ(Health(address, "liveness"), 1);
  for (const char* name : {"", "readiness", "baton.v1.Worker"}) EXPECT_EQ(Health(address, name), 2) << name;
  (*server)->SetServing(true);
  for (const char* name : {"", "readiness", "baton.v1.Worker"}) EXPECT_EQ(Health(address, name), 1) << name;
  grpc::StatusCode code;
  EXPECT_EQ(Health(address, "nobody", &code), -1);
  EXPECT_EQ(code, grpc::StatusCode::NOT_FOUND);
  (*server)->SetServing(false);
  EXPECT_EQ(Health(address, ""), 2);
}

TEST(ServerTest, PortInUseSaysWhatToDo) {
  EchoService a, b;
  auto first = Server::Start({}, {{"s", &a}});
  ASSERT_TRUE(first.ok());
  ServerOptions options;
  options.listen = (*first)->address();
  const auto second = Server::Start(options, {{"s", &b}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr((*first)->address()), HasSubstr("in use"), HasSubstr("choose another port")));
}

TEST(ServerTest, BadAddresses) {
  EchoService service;
  for (const char* listen : {"", ":1", "host", "host:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:1x", "::1:5",
                             "127.0.0.1: 5", "no such host.invalid:0"}) {
    ServerOptions options;
    options.listen = listen;
    EXPECT_EQ(Server::Start(options, {{"s", &service}}).status().code(), absl::StatusCode::kInvalidArgument) << listen;
  }
}

TEST(ServerTest, MessagesOverTheLimitAreRefused) {
  EchoService service;
  service.answer_bytes = 2000;
  ServerOptions options;
  options.max_message_bytes = 1000;
  auto server = Server::Start(options, {{"baton.v1.Worker", &service}});
  ASSERT_TRUE(server.ok());
  auto stub = v1::Worker::NewStub(CreateChannel((*server)->address()));
  grpc::ClientContext context;
  v1::WorkerStatus response;
  EXPECT_EQ(stub->GetWorkerStatus(&context, {}, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(AddressTest, PartsAndLoopback) {
  EXPECT_EQ(ParseHostPort("[::1]:50051")->host, "::1");
  EXPECT_EQ(ParseHostPort("h:0")->port, 0);
  EXPECT_EQ(JoinHostPort("::1", 5), "[::1]:5");
  EXPECT_TRUE(IsLoopback("127.9.9.9"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("10.0.0.1"));
}

TEST(ChannelTest, NoDeadlineIsInfinite) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::InfiniteFuture());
  EXPECT_EQ(context.deadline(), std::chrono::system_clock::time_point::max());
}

// Bug: the process died when the last channel was let go by a callback of its own.
TEST(ChannelTest, TheLastChannelMayBeLetGoByItsOwnCallback) {
  for (int i = 0; i < 300; ++i) {
    struct Call {
      std::unique_ptr<v1::Worker::Stub> stub = v1::Worker::NewStub(CreateChannel("127.0.0.1:1"));
      grpc::ClientContext context;
      v1::GetWorkerStatusRequest request;
      v1::WorkerStatus response;
    };
    auto call = std::make_shared<Call>();
    Call* const raw = call.get();
    absl::Notification done;
    raw->stub->async()->GetWorkerStatus(&raw->context, &raw->request, &raw->response,
                                        [call = std::move(call), &done](grpc::Status status) mutable {
                                          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
                                          call.reset();
                                          done.Notify();
                                        });
    done.WaitForNotification();
  }
}

}  // namespace
}  // namespace baton::rpc
