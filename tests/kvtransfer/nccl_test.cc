// The NCCL transport over the NCCL of tests, between an exporter and a receiver of this process: what moves, and what
// happens when communicators are not made, break, hang, deliver altered bytes or take long to abort.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "common/mutex.h"
#include "common/rpc/channel.h"
#include "kvtransfer/failover_client.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/nccl_loopback.h"
#include "kvtransfer/nccl_transport.h"
#include "proto/kv_nccl.grpc.pb.h"
#include "tests/kvtransfer/nccl_fixture.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::Eventually;
using testing::Outcome;
using testing::Soon;

// 2,949,120 bytes a block: twelve pieces, the last one short, in groups of sixteen.
kernels::KvLayout WideLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 128, .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
}

// Of a group that is to be given up; those before it must not be, however slow a sanitizer makes them.
#ifdef BATON_SANITIZE
constexpr absl::Duration kShort = absl::Seconds(3);
#else
constexpr absl::Duration kShort = absl::Milliseconds(150);
#endif

class NcclTest : public testing::NcclFixture {
 protected:
  void Start(kernels::KvLayout layout, int64_t num_blocks, NcclOptions options = {}, bool tags = false) {
    layout_ = layout;
    from_ = testing::MakePool(layout, num_blocks);
    to_ = testing::MakePool(layout, num_blocks);
    exporter_ = std::make_unique<Exporter>(Exporter::Options{.worker_name = "p0",
                                                             .incarnation = RandomIncarnation(),
                                                             .key = testing::TestKey(),
                                                             .layout = layout,
                                                             .fingerprint = testing::Fingerprint(),
                                                             .reap_interval = absl::Milliseconds(20),
                                                             .block_tags = tags});
    StartServer(options);
    client_ = MakeClient(options);
  }
  ReceiverOptions Receiver() {
    return {.key = testing::TestKey(),
            .layout = layout_,
            .fingerprint = testing::Fingerprint(),
            .consumer = RandomIncarnation()};
  }
  std::unique_ptr<TransportClient> MakeClient(NcclOptions options = {}) {
    return *StartNcclKvClient(Receiver(), options);
  }
  void TearDown() override {
    if (client_ != nullptr) client_->Shutdown();
    StopServer();
    if (from_ != nullptr) testing::ExpectAllFree(*from_);
    if (to_ != nullptr) testing::ExpectAllFree(*to_);
  }
  ExportSpec Spec(int64_t blocks, const std::string& request = "r1") {
    return {.request_id = request,
            .epoch = 1,
            .num_tokens = static_cast<uint32_t>(blocks * layout_.block_size),
            .lease = absl::Seconds(20)};
  }
  v1::Ticket Export(int64_t blocks, uint64_t seed, const std::string& request = "r1") {
    auto ticket = exporter_->ExportSealed(Spec(blocks, request), testing::FilledLease(from_.get(), blocks, seed));
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return *ticket;
  }
  FetchRequest Ask(const v1::Ticket& ticket, uint32_t first_block = 0, uint32_t attempt = 1) {
    FetchRequest request;
    request.ticket = ticket;
    request.first_block = first_block;
    request.attempt = attempt;
    const int64_t missing = ticket.blocks_size() - static_cast<int64_t>(first_block);
    if (missing > 0) request.destination = *to_->AllocateLease(missing);
    request.deadline = Soon();
    return request;
  }
  // A whole fetch that must go well, and give its memory back.
  void ExpectFetched(const v1::Ticket& ticket, uint64_t seed, const std::string& transport = "nccl") {
    Outcome outcome;
    client_->Fetch(Ask(ticket, 0, 9), outcome.Callback());
    auto stats = outcome.Wait();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->transport, transport);
    EXPECT_TRUE(testing::HoldsFill(outcome.destination(), ticket.blocks_size(), seed));
  }

  kernels::KvLayout layout_;
  std::unique_ptr<TransportClient> client_;
};

TEST_F(NcclTest, BlocksOfManyGroupsArriveWholeOverOneCommunicator) {
  Start(WideLayout(), 8);
  for (int round = 0; round < 3; ++round) {
    Outcome outcome;
    client_->Fetch(Ask(Export(8, round, "r" + std::to_string(round))), outcome.Callback());
    auto stats = outcome.Wait();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->transport, "nccl");
    EXPECT_EQ(stats->detail, "loopback");
    EXPECT_EQ(stats->bytes, 8 * layout_.block_bytes());
    EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 8, round));
    EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; })) << "the export ends with its fetch";
  }
  EXPECT_EQ(service_->counters().completed, 3u);
  EXPECT_EQ(service_->counters().comms, 1u) << "one for the pair, not one a fetch";
}

TEST_F(NcclTest, BlocksAreSentAsTheyAreSealedAndThePayloadClosesTheFetch) {
  Start(testing::TinyLayout(), 8);
  auto ticket = exporter_->Export(Spec(6), testing::FilledLease(from_.get(), 6, 5));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  Outcome outcome;
  client_->Fetch(Ask(*ticket, 2), outcome.Callback());
  const TransferId id = TransferId::Of(*ticket);
  for (size_t sealed = 1; sealed <= 6; ++sealed) {
    EXPECT_TRUE(exporter_->Seal(id, sealed));
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(outcome.calls(), 0) << "not over before the export is closed";
  EXPECT_TRUE(exporter_->Close(id, /*finished=*/false, "token 0"));
  auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->blocks, 4u);
  EXPECT_EQ(outcome.payload(), "token 0");
  for (int i = 0; i < 4; ++i) {
    std::vector<std::byte> expected(layout_.block_bytes());
    testing::Fill(expected, 5 * 1000 + 2 + i);
    EXPECT_EQ(std::memcmp(expected.data(), outcome.destination().bytes(i).data(), expected.size()), 0) << i;
  }
}

TEST_F(NcclTest, ManyFetchesAtOnceWithTags) {
  Start(testing::TinyLayout(), 64, {}, /*tags=*/true);
  std::vector<std::unique_ptr<Outcome>> outcomes;
  for (int i = 0; i < 16; ++i) {
    outcomes.push_back(std::make_unique<Outcome>());
    client_->Fetch(Ask(Export(4, i, "r" + std::to_string(i))), outcomes.back()->Callback());
  }
  for (int i = 0; i < 16; ++i) {
    auto stats = outcomes[i]->Wait();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_TRUE(testing::HoldsFill(outcomes[i]->destination(), 4, i));
  }
  EXPECT_EQ(service_->counters().comms, 1u);
}

// What a stream is told in answer to its first message, and its status.
struct Answer {
  std::vector<v1::NcclTell> told;
  grpc::Status status;
};
Answer SayTo(const std::string& address, const std::vector<v1::NcclAsk>& asks) {
  auto stub = v1::KvNccl::NewStub(rpc::CreateChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(Soon()));
  auto stream = stub->Link(&context);
  for (const v1::NcclAsk& ask : asks) stream->Write(ask);
  Answer answer;
  v1::NcclTell tell;
  while (stream->Read(&tell)) answer.told.push_back(tell);
  answer.status = stream->Finish();
  return answer;
}

TEST_F(NcclTest, WithoutAValidTicketThereIsNoCommunicatorAndNoByte) {
  NcclOptions options;
  options.open_timeout = absl::Milliseconds(200);
  Start(testing::TinyLayout(), 8, options);
  const v1::Ticket ticket = Export(4, 1);
  const uint64_t hash = testing::PoolHash(*from_);
  const std::string address = port_->endpoint().address();
  v1::NcclAsk forged;
  forged.set_fetch(1);
  *forged.mutable_open()->mutable_ticket() = ticket;
  forged.mutable_open()->mutable_ticket()->mutable_mac()->back() ^= 1;
  Answer answer = SayTo(address, {forged});
  ASSERT_EQ(answer.told.size(), 1u);
  EXPECT_EQ(answer.told[0].end().code(), static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(service_->counters().forged, 1u);

  v1::NcclAsk beat;
  beat.set_beat(true);
  EXPECT_EQ(SayTo(address, {beat}).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::NcclAsk numberless;
  *numberless.mutable_open()->mutable_ticket() = ticket;
  EXPECT_EQ(SayTo(address, {numberless}).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(SayTo(address, {}).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "a silent stream is ended";
  EXPECT_EQ(service_->counters().malformed, 3u);
  EXPECT_EQ(service_->counters().comms, 0u);
  EXPECT_EQ(testing::PoolHash(*from_), hash);
  EXPECT_TRUE(Eventually([&] { return service_->counters().links_open == 0; }));
  ExpectFetched(ticket, 1);
}

TEST_F(NcclTest, AForgedTicketEndsALinkThatWasTrusted) {
  Start(testing::TinyLayout(), 8);
  v1::NcclAsk good, forged;
  good.set_fetch(1);
  *good.mutable_open()->mutable_ticket() = Export(2, 1, "good");
  forged.set_fetch(2);
  *forged.mutable_open()->mutable_ticket() = Export(2, 2, "forged");
  forged.mutable_open()->mutable_ticket()->set_epoch(7);
  const Answer answer = SayTo(port_->endpoint().address(), {good, forged});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Eventually([&] { return service_->counters().links_open == 0; }));
  EXPECT_EQ(NumLoopbackComms(), 0) << "the rank whose peer never came was aborted";
  EXPECT_EQ(exporter_->counters().in_flight, 0u);
}

TEST_F(NcclTest, AlteredBytesAreNeverUsed) {
  Start(WideLayout(), 8);
  LoopbackFaults().corrupt_at_group = 2;
  Outcome outcome;
  client_->Fetch(Ask(Export(4, 1)), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kDataLoss) << outcome.Wait().status();
  EXPECT_EQ(outcome.destination().blocks().size(), 4u);
  outcome.destination().Reset();
  LoopbackFaults().corrupt_at_group = 0;
  ExpectFetched(Export(4, 2, "r2"), 2);
  EXPECT_EQ(service_->counters().comms, 1u) << "the link itself is as good as before";
}

// A send is complete once NCCL has buffered it: many groups can be announced before the receiver's end of the communicator
// is made and posts the first receive.
TEST_F(NcclTest, ASenderMayBeManyGroupsAhead) {
  Start(testing::TinyLayout(), 300);
  LoopbackFaults().slow_rank_1_ms = 300;
  auto ticket = exporter_->Export(Spec(300), testing::FilledLease(from_.get(), 300, 5));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  Outcome outcome;
  client_->Fetch(Ask(*ticket), outcome.Callback());
  for (size_t sealed = 1; sealed <= 300; ++sealed) {
    EXPECT_TRUE(exporter_->Seal(TransferId::Of(*ticket), sealed));
    absl::SleepFor(absl::Milliseconds(1));  // a group each
  }
  EXPECT_TRUE(exporter_->Close(TransferId::Of(*ticket), false, ""));
  auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 300, 5));
}

TEST_F(NcclTest, CancelAndDeadlineGiveTheDestinationBackAndKeepTheLink) {
  Start(WideLayout(), 8);
  for (const bool by_deadline : {false, true}) {
    auto ticket = exporter_->Export(Spec(4, by_deadline ? "late" : "gone"), testing::FilledLease(from_.get(), 4, 1));
    ASSERT_TRUE(ticket.ok());
    exporter_->Seal(TransferId::Of(*ticket), 2);  // so that it runs, and waits
    Outcome outcome;
    FetchRequest request = Ask(*ticket);
    if (by_deadline) request.deadline = absl::Now() + absl::Milliseconds(200);
    const FetchId id = client_->Fetch(std::move(request), outcome.Callback());
    EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 1; }));
    if (!by_deadline) client_->Cancel(id);
    EXPECT_EQ(outcome.Wait().status().code(),
              by_deadline ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
    EXPECT_EQ(outcome.destination().blocks().size(), 4u);
    EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; }));
  }
  ExpectFetched(Export(4, 3, "next"), 3);
  EXPECT_EQ(service_->counters().comms, 1u) << "what was under way was received, so the order still holds";
}

// NCCL never says that a peer is stuck: the transport keeps the time.
TEST_F(NcclTest, AGroupThatHangsIsAbortedAndTheTicketStaysGood) {
  NcclOptions options;
  options.group_timeout = kShort;
  Start(WideLayout(), 8, options);
  LoopbackFaults().hang_at_group = 2;
  const v1::Ticket ticket = Export(8, 4);
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  EXPECT_EQ(outcome.destination().blocks().size(), 8u);
  outcome.destination().Reset();
  EXPECT_TRUE(Eventually([&] { return NumLoopbackComms() == 0; })) << "both ends abort";
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 0; }));
  EXPECT_EQ(exporter_->counters().outstanding, 1u) << "a broken link does not use the ticket up";
  LoopbackFaults().hang_at_group = 0;
  ExpectFetched(ticket, 4);
  EXPECT_EQ(service_->counters().comms, 2u) << "a new communicator";
}

TEST_F(NcclTest, AnAsynchronousErrorEndsTheLink) {
  Start(WideLayout(), 8);
  LoopbackFaults().break_at_group = 3;
  const v1::Ticket ticket = Export(8, 4);
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  outcome.destination().Reset();
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 0; }));
  LoopbackFaults().break_at_group = 0;
  ExpectFetched(ticket, 4);
}

TEST_F(NcclTest, ACommunicatorThatIsNeverMadeIsAborted) {
  NcclOptions options;
  options.init_timeout = kShort;
  Start(testing::TinyLayout(), 8, options);
  LoopbackFaults().init_hangs = true;
  const v1::Ticket ticket = Export(4, 4);
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  outcome.destination().Reset();
  EXPECT_TRUE(Eventually([&] { return NumLoopbackComms() == 0; }));
  LoopbackFaults().init_hangs = false;
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 0; }));
  ExpectFetched(ticket, 4);
}

// The memory of both pools is free while the communicator that moved it is still being aborted.
TEST_F(NcclTest, ASlowAbortHoldsNeitherMemoryNorOtherFetches) {
  NcclOptions options;
  options.group_timeout = kShort;
  Start(WideLayout(), 8, options);
  LoopbackFaults().hang_at_group = 1;
  LoopbackFaults().abort_ms = 1500;
  const v1::Ticket ticket = Export(8, 4);
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable);
  outcome.destination().Reset();
  EXPECT_TRUE(exporter_->Release(TransferId::Of(ticket)));
  EXPECT_TRUE(Eventually([&] { return from_->ledger().free == from_->ledger().total; }));
  LoopbackFaults().hang_at_group = 0;
  const v1::Ticket next = Export(4, 5, "next");
  ExpectFetched(next, 5);
}

TEST_F(NcclTest, AServerThatGoesAwayLeavesTheTicketUsable) {
  std::atomic<bool> reached{false};
  NcclOptions options;
  options.before_group_for_test = [&](TransferId, uint64_t group) { reached = reached || group >= 2; };
  Start(WideLayout(), 8, options);
  auto ticket = exporter_->Export(Spec(8), testing::FilledLease(from_.get(), 8, 9));
  ASSERT_TRUE(ticket.ok());
  exporter_->Seal(TransferId::Of(*ticket), 5);
  Outcome outcome;
  client_->Fetch(Ask(*ticket), outcome.Callback());
  ASSERT_TRUE(Eventually([&] { return reached.load(); }));
  server_->Shutdown();
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  EXPECT_EQ(outcome.destination().blocks().size(), 8u);
  EXPECT_EQ(exporter_->counters().outstanding, 1u) << "a broken link does not use the ticket up";
  port_->Shutdown();
  Outcome nobody;
  outcome.destination().Reset();
  client_->Fetch(Ask(*ticket, 0, 2), nobody.Callback());
  EXPECT_EQ(nobody.Wait().status().code(), absl::StatusCode::kUnavailable) << "nobody there";
}

// The receiver dies in the middle: the exporter's claim ends and the rank that waits for it is aborted.
TEST_F(NcclTest, AReceiverThatVanishesLeaksNothing) {
  Start(WideLayout(), 8);
  auto ticket = exporter_->Export(Spec(8), testing::FilledLease(from_.get(), 8, 9));
  ASSERT_TRUE(ticket.ok());
  exporter_->Seal(TransferId::Of(*ticket), 8);
  {
    auto stub = v1::KvNccl::NewStub(rpc::CreateChannel(port_->endpoint().address()));
    grpc::ClientContext context;
    auto stream = stub->Link(&context);
    v1::NcclAsk ask;
    ask.set_fetch(1);
    *ask.mutable_open()->mutable_ticket() = *ticket;
    stream->Write(ask);
    v1::NcclTell tell;
    ASSERT_TRUE(stream->Read(&tell));
    EXPECT_EQ(tell.unique_id().size(), 128u);
    EXPECT_EQ(NumLoopbackComms(), 1);
    context.TryCancel();
  }
  EXPECT_TRUE(Eventually([&] { return service_->counters().links_open == 0; }));
  EXPECT_EQ(NumLoopbackComms(), 0);
  EXPECT_EQ(exporter_->counters().in_flight, 0u);
  EXPECT_TRUE(exporter_->Close(TransferId::Of(*ticket), false, ""));
  ExpectFetched(*ticket, 9);
}

TEST_F(NcclTest, TheSameFetchGoesOnOverGrpcWhenTheLinkBreaks) {
  NcclOptions options;
  options.group_timeout = kShort;
  Start(WideLayout(), 8, options);
  std::vector<std::unique_ptr<TransportClient>> clients;
  clients.push_back(std::move(client_));
  const ReceiverOptions receiver = Receiver();
  clients[0] = *StartNcclKvClient(receiver, options);
  clients.push_back(MakeGrpcKvClient(receiver, {}));
  client_ = std::make_unique<FailoverClient>(std::move(clients));
  ExpectFetched(Export(4, 1, "before"), 1);
  LoopbackFaults().hang_at_group = 2;
  service_->Shutdown();  // and with it the communicator
  ExpectFetched(Export(8, 2, "after"), 2, "grpc");
}

TEST_F(NcclTest, HostileGroupsEndTheLinkNotTheProcess) {
  // A sender that says what no sender of ours says, to our client.
  class Sender final : public v1::KvNccl::Service {
   public:
    void Tell(const v1::NcclTell& tell) {
      MutexLock lock(&mu_);
      tell_ = tell;
    }
    grpc::Status Link(grpc::ServerContext*, grpc::ServerReaderWriter<v1::NcclTell, v1::NcclAsk>* stream) override {
      v1::NcclAsk ask;
      stream->Read(&ask);
      v1::NcclTell tell;
      {
        MutexLock lock(&mu_);
        tell = tell_;
      }
      stream->Write(tell);
      while (stream->Read(&ask)) {
      }
      return grpc::Status::OK;
    }

   private:
    Mutex mu_;
    v1::NcclTell tell_ ABSL_GUARDED_BY(mu_);
  };
  Start(testing::TinyLayout(), 16);
  Sender sender;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&sender);
  auto grpc_server = builder.BuildAndStart();
  v1::Endpoint endpoint = server_->endpoint();
  endpoint.set_address("127.0.0.1:" + std::to_string(port));
  exporter_->AddEndpoint(endpoint);
  for (int i = 0; i < 5; ++i) {
    v1::NcclTell tell;
    tell.set_fetch(1);
    if (i == 0) tell.set_unique_id("short");
    if (i == 1) tell.mutable_group();
    if (i >= 2) tell.mutable_group()->add_parts()->set_size(i == 2 ? 0 : i == 3 ? ~uint64_t{0} : 1024);
    sender.Tell(tell);
    Outcome outcome;
    client_->Fetch(Ask(Export(2, i, "r" + std::to_string(i))), outcome.Callback());
    EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << i << " " << outcome.Wait().status();
  }
  client_->Shutdown();
  grpc_server->Shutdown();
}

}  // namespace
}  // namespace baton::kvtransfer
