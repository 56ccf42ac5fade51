// Whole messages of the services between router and workers, well-formed and wrong (message_mutator.h), sent to running
// processes. Whatever they say, the answer is a typed status, every process lives, requests of others get the same tokens as
// before, and nothing is held in the end. BATON_MESSAGE_FAULTS: how many (1,000).
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/chaos/message_mutator.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

using google::protobuf::Message;

struct Sample {
  std::string method, address;
  std::shared_ptr<Message> message;  // a good one
};

template <typename T>
Sample Make(const std::string& method, const std::string& address, const T& message) {
  return {method, address, std::make_shared<T>(message)};
}

void FillRequest(auto* request, const std::string& id) {
  request->set_request_id(id);
  request->set_epoch(1);
  for (int i = 0; i < 40; ++i) request->add_prompt_token_ids(i * 7 % 280);
  v1::SamplingParams* sampling = request->mutable_sampling();
  sampling->set_temperature(1);
  sampling->set_seed(7);
  sampling->set_max_tokens(8);
  sampling->set_n(2);
  (*sampling->mutable_logit_bias())[5] = 2;
  request->set_tenant("t");
}

// One message of every method that does not end a worker's service (Drain, ChangeRole).
std::vector<Sample> Samples(Cluster* cluster) {
  WorkerProcess& prefill = *cluster->workers()[0];
  WorkerProcess& decode = *cluster->workers()[1];
  std::vector<Sample> samples;
  v1::PrefillRequest compute;
  FillRequest(&compute, "prefill");
  samples.push_back(Make("/baton.v1.PrefillWorker/Prefill", prefill.address, compute));
  compute.set_hand_over(true);
  samples.push_back(Make("/baton.v1.PrefillWorker/Prefill", prefill.address, compute));

  // A real ticket, whose call is then given up.
  v1::Ticket ticket;
  {
    const auto stub = v1::PrefillWorker::NewStub(OpenChannel(prefill.address, "", "", ""));
    grpc::ClientContext context;
    auto stream = stub->Prefill(&context, compute);
    for (v1::PrefillEvent event; !event.has_ticket() && stream->Read(&event);) {
      if (event.has_ticket()) ticket = event.ticket();
    }
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_GT(ticket.blocks_size(), 0);

  v1::DecodeRequest decoded;
  FillRequest(&decoded, "decode");
  samples.push_back(Make("/baton.v1.DecodeWorker/Decode", decode.address, decoded));
  decoded.set_local_prefill(true);
  samples.push_back(Make("/baton.v1.DecodeWorker/Decode", decode.address, decoded));
  for (int choice = 0; choice < 2; ++choice) {
    v1::EmittedTokens* emitted = decoded.add_resume();
    for (int i = 0; i < 3; ++i) emitted->add_token_ids(i + choice);
  }
  samples.push_back(Make("/baton.v1.DecodeWorker/Decode", decode.address, decoded));
  v1::UpdateDecodeRequest update;
  update.set_request_id("decode");
  update.set_epoch(1);
  *update.mutable_ticket() = ticket;
  update.set_go(true);
  samples.push_back(Make("/baton.v1.DecodeWorker/UpdateDecode", decode.address, update));
  v1::FeedRequest feed;
  feed.set_feed_id("feed");
  samples.push_back(Make("/baton.v1.DecodeWorker/Feed", decode.address, feed));
  v1::ImportHistoryRequest history;
  history.set_request_id("history");
  history.set_epoch(1);
  history.set_tenant("t");
  for (int i = 0; i < 32; ++i) history.add_token_ids(i);
  *history.mutable_ticket() = ticket;
  samples.push_back(Make("/baton.v1.PrefillWorker/ImportHistory", prefill.address, history));
  for (WorkerProcess* worker : {&prefill, &decode}) {
    samples.push_back(Make("/baton.v1.Worker/GetWorkerStatus", worker->address, v1::GetWorkerStatusRequest()));
  }

  // To the router: of a worker that nobody knows, and loads that the real ones do not have.
  const absl::StatusOr<v1::ClusterStatus> status = cluster->Status();
  EXPECT_TRUE(status.ok()) << status.status();
  if (!status.ok()) return samples;
  for (const v1::ClusterWorker& worker : status->workers()) {
    v1::RegisterRequest join;
    *join.mutable_worker() = worker.info();
    join.mutable_worker()->set_name("nobody");
    join.mutable_worker()->set_incarnation("0123456789abcdef0123456789abcdef");
    samples.push_back(Make("/baton.v1.Cluster/Register", cluster->router_address(), join));
    v1::HeartbeatRequest beat;
    beat.set_name(worker.info().name());
    beat.set_incarnation(worker.info().incarnation());
    *beat.mutable_load() = worker.load();
    samples.push_back(Make("/baton.v1.Cluster/Heartbeat", cluster->router_address(), beat));
    beat.set_name("nobody");
    beat.set_incarnation(join.worker().incarnation());
    samples.push_back(Make("/baton.v1.Cluster/Heartbeat", cluster->router_address(), beat));
  }
  v1::DeregisterRequest leave;
  leave.set_name("nobody");
  leave.set_incarnation("0123456789abcdef0123456789abcdef");
  samples.push_back(Make("/baton.v1.Cluster/Deregister", cluster->router_address(), leave));
  v1::ExplainPlacementRequest why;
  why.set_request_id("decode");
  samples.push_back(Make("/baton.v1.Cluster/ExplainPlacement", cluster->router_address(), why));
  return samples;
}

// Sends it and reads what comes for a quarter of a second.
grpc::Status Send(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Milliseconds(250));
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  if (wait()) {
    stream->WriteLast(request, grpc::WriteOptions(), nullptr);
    wait();
    grpc::ByteBuffer response;
    do {
      stream->Read(&response, nullptr);
    } while (wait());
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  return status;
}

TEST(MessageFaultsTest, WellFormedNonsenseGetsTypedAnswersAndHarmsNobody) {
  auto started = Cluster::Start({.model = TinyModel(), .flags = {"--kv-memory-mib=16", "--kv-lease-ms=500"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster* const cluster = started->get();
  const Workload load = MakeWorkload(cluster, 1, 8);
  const std::vector<Sample> samples = Samples(cluster);
  ASSERT_GT(samples.size(), 12u);
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels;
  for (const Sample& sample : samples) channels[sample.address] = OpenChannel(sample.address, "", "", "");

  constexpr int kThreads = 8;
  const int count = FromEnvironment("BATON_MESSAGE_FAULTS", 1000);
  std::vector<std::map<std::string, int>> codes(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < count; i += kThreads) {
        std::mt19937_64 random(static_cast<uint64_t>(i));
        const Sample& sample = samples[static_cast<size_t>(i) % samples.size()];
        const std::unique_ptr<Message> message(sample.message->New());
        message->CopyFrom(*sample.message);
        for (size_t n = random() % 4; n > 0; --n) MutateOnce(message.get(), &random);
        const grpc::Status status = Send(channels.at(sample.address), sample.method, *message);
        const grpc::StatusCode code = status.error_code();
        ++codes[static_cast<size_t>(t)][absl::StrCat(sample.method, " ", code)];
        // A history that this model would not have made is told as what it would be: a worker that computes otherwise.
        const bool other_history = absl::StrContains(status.error_message(), "arithmetic differs");
        const bool typed = code != grpc::StatusCode::UNKNOWN && (code != grpc::StatusCode::INTERNAL || other_history) &&
                           code != grpc::StatusCode::UNIMPLEMENTED && code != grpc::StatusCode::UNAVAILABLE;
        EXPECT_TRUE(typed) << sample.method << " answered " << code << " (" << status.error_message() << ") to message " << i << ": "
                           << message->ShortDebugString().substr(0, 2000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int> all;
  for (const auto& of_thread : codes) {
    for (const auto& [code, times] : of_thread) all[code] += times;
  }
  for (const auto& [code, times] : all) printf("%s: %d\n", code.c_str(), times);

  for (auto& worker : cluster->workers()) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(worker->process->WaitExit(absl::ZeroDuration()).status()))
        << worker->name << " ended: " << worker->process->stderr_text();
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(cluster->router().WaitExit(absl::ZeroDuration()).status()))
      << cluster->router().stderr_text();
  const absl::Status ready = cluster->WaitReady(absl::Seconds(20));
  EXPECT_TRUE(ready.ok()) << ready;
  for (size_t i = 0; i < load.requests.size(); ++i) {
    EXPECT_EQ(Difference(cluster->Generate(load.requests[i]), load.want[i]), "") << "request " << i;
  }
  ExpectNothingHeld(cluster);
}

}  // namespace
}  // namespace baton::e2e
