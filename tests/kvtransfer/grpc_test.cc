// The gRPC transport between an exporter and a receiver of this process, plain text and under mutual TLS.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "common/rpc/channel.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/grpc_wire.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::Eventually;
using testing::Outcome;
using testing::Soon;

// 2,949,120 bytes a block: three frames, the last one short.
kernels::KvLayout WideLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 128, .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
}

class GrpcTest : public ::testing::Test {
 protected:
  void Start(kernels::KvLayout layout, int64_t num_blocks, GrpcKvOptions options = {}, bool tags = false) {
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
    auto server = GrpcKvServer::Start(exporter_.get(), options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = MakeClient(options);
  }
  std::unique_ptr<TransportClient> MakeClient(GrpcKvOptions options = {}) {
    return MakeGrpcKvClient({.key = testing::TestKey(),
                             .layout = layout_,
                             .fingerprint = testing::Fingerprint(),
                             .consumer = RandomIncarnation()},
                            options);
  }
  void TearDown() override {
    if (client_ != nullptr) client_->Shutdown();
    if (server_ != nullptr) server_->Shutdown();
    if (exporter_ != nullptr) {
      EXPECT_EQ(exporter_->counters().in_flight, 0u);
      EXPECT_EQ(exporter_->counters().impossible, 0u);
      exporter_->ReleaseAll();
    }
    if (from_ != nullptr) testing::ExpectAllFree(*from_);
    if (to_ == nullptr) return;
    EXPECT_TRUE(Eventually([&] { return to_->ledger().free == to_->ledger().total; }));
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

  kernels::KvLayout layout_;
  std::shared_ptr<kvcache::BlockPool> from_, to_;
  std::unique_ptr<Exporter> exporter_;
  std::unique_ptr<GrpcKvServer> server_;
  std::unique_ptr<TransportClient> client_;
};

TEST_F(GrpcTest, BlocksOfManyFramesArriveWhole) {
  Start(WideLayout(), 8);
  for (int round = 0; round < 3; ++round) {
    Outcome outcome;
    client_->Fetch(Ask(Export(8, round, "r" + std::to_string(round))), outcome.Callback());
    auto stats = outcome.Wait();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->transport, "grpc");
    EXPECT_EQ(stats->bytes, 8 * layout_.block_bytes());
    EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 8, round));
    outcome.destination().Reset();
    EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; })) << "the export ends with its fetch";
  }
  EXPECT_EQ(server_->counters().completed, 3u);
}

TEST_F(GrpcTest, BlocksAreSentAsTheyAreSealedAndThePayloadClosesTheFetch) {
  Start(testing::TinyLayout(), 8);
  kvcache::BlockLease lease = testing::FilledLease(from_.get(), 6, 5);
  auto ticket = exporter_->Export(Spec(6), std::move(lease));
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

TEST_F(GrpcTest, ManyFetchesAtOnceWithTags) {
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
}

TEST_F(GrpcTest, ForgedTicketsGetNothing) {
  Start(testing::TinyLayout(), 8);
  const v1::Ticket ticket = Export(4, 1);
  const uint64_t hash = testing::PoolHash(*from_);
  // A receiver that does not check: straight to the wire.
  grpc::GenericStub stub(rpc::CreateChannel(server_->endpoint().address()));
  const auto say = [&](const v1::KvFetchMessage& message) {
    class Reactor : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
     public:
      grpc::ClientContext context;
      grpc::ByteBuffer out, in;
      std::optional<Frame> frame;
      Mutex mu;
      CondVar cv;
      bool done = false;
      void OnReadDone(bool ok) override {
        if (ok) frame = DecodeFrame(in);
      }
      void OnDone(const grpc::Status&) override {
        MutexLock lock(&mu);
        done = true;
        cv.SignalAll();
      }
    } reactor;
    reactor.out = EncodeFetchMessage(message);
    stub.PrepareBidiStreamingCall(&reactor.context, kGrpcFetchMethod, {}, &reactor);
    reactor.StartWrite(&reactor.out);
    reactor.StartRead(&reactor.in);
    reactor.StartCall();
    MutexLock lock(&reactor.mu);
    while (!reactor.done) reactor.cv.Wait(&reactor.mu);
    return std::move(reactor.frame);
  };
  v1::KvFetchMessage forged;
  *forged.mutable_open()->mutable_ticket() = ticket;
  forged.mutable_open()->mutable_ticket()->mutable_mac()->back() ^= 1;
  std::optional<Frame> answer = say(forged);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->data_bytes, 0u);
  EXPECT_EQ(answer->header.end().code(), static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  v1::KvFetchMessage stop;
  stop.set_stop(true);
  answer = say(stop);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->header.end().code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(server_->counters().forged, 1u);
  EXPECT_EQ(server_->counters().malformed, 1u);
  EXPECT_EQ(testing::PoolHash(*from_), hash);

  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_TRUE(outcome.Wait().ok()) << "the ticket's owner still gets it";
}

TEST_F(GrpcTest, ASilentStreamIsEnded) {
  GrpcKvOptions options;
  options.open_timeout = absl::Milliseconds(100);
  Start(testing::TinyLayout(), 4, options);
  class Reactor : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    grpc::ClientContext context;
    std::atomic<int> code{-1};
    void OnDone(const grpc::Status& status) override { code = status.error_code(); }
  } reactor;
  grpc::GenericStub stub(rpc::CreateChannel(server_->endpoint().address()));
  stub.PrepareBidiStreamingCall(&reactor.context, kGrpcFetchMethod, {}, &reactor);
  reactor.StartCall();
  EXPECT_TRUE(Eventually([&] { return reactor.code == grpc::StatusCode::DEADLINE_EXCEEDED; })) << reactor.code;
  EXPECT_TRUE(Eventually([&] { return server_->counters().fetches_open == 0; }));
}

TEST_F(GrpcTest, CancelAndDeadlineGiveTheDestinationBackAndSpendTheTicket) {
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
}

TEST_F(GrpcTest, AServerThatGoesAwayLeavesTheTicketUsable) {
  std::atomic<bool> reached{false};
  GrpcKvOptions options;
  options.before_block_for_test = [&](TransferId, size_t block) { reached = reached || block == 3; };
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
}

// It was given up after the lease, up to which a stream stood still that had elsewhere to go.
TEST_F(GrpcTest, ASilentExporterIsGivenUpLongBeforeTheLease) {
  const auto frozen = std::make_shared<std::atomic<bool>>(true);  // the server may look at it after this function's end
  GrpcKvOptions options;
  options.before_block_for_test = [frozen](TransferId, size_t) {
    while (*frozen) absl::SleepFor(absl::Milliseconds(5));
  };
  Start(testing::TinyLayout(), 4, options);
  FetchRequest request = Ask(Export(2, 1));  // its lease is 20 s
  request.deadline = absl::Now() + absl::Seconds(10);
  Outcome outcome;
  client_->Fetch(std::move(request), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  *frozen = false;
}

TEST_F(GrpcTest, NobodyThereIsUnavailableWithinBoundedAttempts) {
  GrpcKvOptions options;
  options.connect_backoff = absl::Milliseconds(1);
  Start(testing::TinyLayout(), 4, options);
  const v1::Ticket ticket = Export(2, 1);
  server_->Shutdown();
  Outcome outcome;
  client_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcTest, UnderTlsOnlyWorkersFetch) {
  const std::string dir = ::testing::TempDir() + "/kv_certs";
  ASSERT_EQ(std::system(("deploy/certs/make_certs.sh " + dir + " >/dev/null").c_str()), 0);
  const auto as = [&](rpc::PeerRole role) {
    v1::Config config;
    config.set_tls_dir(dir);
    config.set_tls_reload_s(60);
    GrpcKvOptions options;
    options.security = *rpc::Security::FromConfig(config, {role});
    options.connect_backoff = absl::Milliseconds(1);
    return options;
  };
  Start(WideLayout(), 8, as(rpc::PeerRole::kPrefill));
  const v1::Ticket ticket = Export(4, 3);
  for (const auto& options : {as(rpc::PeerRole::kClient), as(rpc::PeerRole::kRouter), GrpcKvOptions()}) {
    auto stranger = MakeClient(options);
    Outcome outcome;
    stranger->Fetch(Ask(ticket), outcome.Callback());
    EXPECT_FALSE(outcome.Wait().ok());
    EXPECT_NE(outcome.Wait().status().code(), absl::StatusCode::kInternal) << outcome.Wait().status();
  }
  EXPECT_EQ(server_->counters().fetches, 0u) << "refused before the transport sees anything";
  auto decode = MakeClient(as(rpc::PeerRole::kDecode));
  Outcome outcome;
  decode->Fetch(Ask(ticket), outcome.Callback());
  auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->detail, "tls");
  EXPECT_TRUE(testing::HoldsFill(outcome.destination(), 4, 3));
}

TEST(GrpcStartTest, WildcardsAndPlainTextBeyondLoopbackAreRefused) {
  Exporter exporter({.worker_name = "p0",
                     .incarnation = RandomIncarnation(),
                     .key = testing::TestKey(),
                     .layout = testing::TinyLayout(),
                     .fingerprint = testing::Fingerprint()});
  GrpcKvOptions options;
  options.listen = "0.0.0.0:0";
  EXPECT_EQ(GrpcKvServer::Start(&exporter, options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GrpcWireTest, FramesComeBackAndGarbageDoesNot) {
  v1::KvFrameHeader header;
  header.set_block_idx(7);
  header.set_offset(1 << 20);
  const std::string bytes(1000, 'x');
  const grpc::Slice data(bytes);
  const grpc::ByteBuffer buffer = EncodeFrame(header, &data);
  const std::optional<Frame> frame = DecodeFrame(buffer);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.block_idx(), 7u);
  EXPECT_EQ(frame->header.offset(), 1u << 20);
  EXPECT_EQ(frame->data_bytes, 1000u);
  const auto decode = [](const std::string& text) {
    const grpc::Slice slice(text);
    return DecodeFrame(grpc::ByteBuffer(&slice, 1)).has_value();
  };
  EXPECT_FALSE(decode(""));
  EXPECT_FALSE(decode("abc"));
  EXPECT_FALSE(decode(std::string("\xff\xff\xff\xff", 4)));
  EXPECT_FALSE(decode(std::string("\x05\x00\x00\x00", 4) + "xx"));
  EXPECT_FALSE(decode(std::string("\x02\x00\x00\x00", 4) + "\xff\xff" + std::string(10, 'x')));
  EXPECT_FALSE(decode(std::string(4, '\0') + std::string(kMaxFrameBytes + 1, 'x')));
  EXPECT_TRUE(decode(std::string(4, '\0'))) << "a heartbeat";
}

}  // namespace
}  // namespace baton::kvtransfer
