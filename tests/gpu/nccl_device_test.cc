// KV that goes from one device's memory to another's over the NCCL transport, with the NCCL of tests and the emulated device,
// whose memory host code cannot touch: what arrives, that the host's memory has no part in it, and what happens when bytes are
// altered, tags are wanted, a link breaks or hangs, or a fetch is given up - whenever the device does its work.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>

#include "common/mutex.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/streams.h"
#include "kvcache/device_blocks.h"
#include "kvtransfer/failover_client.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/nccl_loopback.h"
#include "kvtransfer/nccl_transport.h"
#include "tests/kvtransfer/nccl_fixture.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using cuda_emulator::Haste;
using testing::Eventually;
using testing::Outcome;
using testing::Soon;

// 737,280 bytes a block: three pieces, the last one short; five blocks and a piece in a group.
kernels::KvLayout Layout() {
  return {.dtype = kernels::DType::kF16, .block_size = 32, .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
}
constexpr int64_t kBlocks = 12;
#ifdef BATON_SANITIZE
constexpr absl::Duration kShort = absl::Seconds(5);
#else
constexpr absl::Duration kShort = absl::Milliseconds(500);
#endif

class NcclDeviceTest : public testing::NcclFixture {
 protected:
  // Which of the two has its KV on a device.
  void Start(NcclOptions options = {}, bool tags = false, bool from_device = true, bool to_device = true) {
    from_ = *kvcache::BlockPool::Create(Layout(), kBlocks, from_device ? &backend_ : nullptr);
    to_ = *kvcache::BlockPool::Create(Layout(), kBlocks, to_device ? &backend_ : nullptr);
    for (const auto& pool : {from_, to_}) std::memset(pool->view().base, 0x5a, kBlocks * Layout().block_bytes());
    untouched_ = testing::PoolHash(*from_);
    Exporter::Options exporter = {.worker_name = "p0",
                                  .incarnation = RandomIncarnation(),
                                  .key = testing::TestKey(),
                                  .layout = Layout(),
                                  .fingerprint = testing::Fingerprint(),
                                  .reap_interval = absl::Milliseconds(20),
                                  .block_tags = tags};
    exporter.copy_to_host = [this](kvcache::BlockLease blocks, std::function<void()> done) {
      MutexLock lock(&mu_);
      copies_.push_back({std::move(blocks), std::move(done)});
    };
    exporter_ = std::make_unique<Exporter>(std::move(exporter));
    NcclOptions serving = options, fetching = options;
    serving.device = from_device ? &backend_ : nullptr;
    fetching.device = to_device ? &backend_ : nullptr;
    StartServer(serving);
    const ReceiverOptions receiver = {.key = testing::TestKey(),
                                      .layout = Layout(),
                                      .fingerprint = testing::Fingerprint(),
                                      .consumer = RandomIncarnation()};
    std::vector<std::unique_ptr<TransportClient>> clients;
    clients.push_back(*StartNcclKvClient(receiver, fetching));
    nccl_ = clients[0].get();
    clients.push_back(MakeGrpcKvClient(receiver, {}));
    client_ = std::make_unique<FailoverClient>(std::move(clients));
  }
  ~NcclDeviceTest() override { cuda_emulator::SetHaste(Haste::kLazy); }
  void TearDown() override {
    if (client_ != nullptr) client_->Shutdown();
    StopServer();
    copies_.clear();
    for (const auto& pool : {from_, to_}) {
      if (pool == nullptr) continue;
      testing::ExpectAllFree(*pool);
      pool->DropDevice();
    }
  }

  // Does what an engine does when host memory is asked for; how often.
  int ServeCopies() {
    int served = 0;
    for (;; ++served) {
      std::optional<std::pair<kvcache::BlockLease, std::function<void()>>> copy;
      {
        MutexLock lock(&mu_);
        if (copies_.empty()) return served;
        copy = std::move(copies_.front());
        copies_.pop_front();
      }
      from_->device()->Download(copy->first.blocks());
      from_->device()->Wait(from_->device()->latest());
      copy->second();
    }
  }
  std::vector<std::byte> Pattern(uint64_t seed, size_t block) {
    std::vector<std::byte> bytes(Layout().block_bytes());
    testing::Fill(bytes, seed * 1000 + block);
    return bytes;
  }
  void Write(const kvcache::BlockLease& lease, size_t i, uint64_t seed) {
    const std::vector<std::byte> bytes = Pattern(seed, i);
    if (lease.pool()->device() == nullptr) {
      std::memcpy(lease.bytes(i).data(), bytes.data(), bytes.size());
      return;
    }
    backend_.Upload(lease.device_bytes(i), bytes.data(), bytes.size());
    backend_.Finish();
  }
  // On which side they are to be.
  bool Holds(const kvcache::BlockLease& lease, size_t i, uint64_t seed) {
    std::vector<std::byte> bytes(Layout().block_bytes());
    if (lease.on_device(i)) {
      backend_.Download(bytes.data(), lease.device_bytes(i), bytes.size());
    } else {
      std::memcpy(bytes.data(), lease.bytes(i).data(), bytes.size());
    }
    return bytes == Pattern(seed, i);
  }
  bool HoldsAll(const kvcache::BlockLease& lease, size_t num_blocks, uint64_t seed, bool on_device) {
    for (size_t i = 0; i < num_blocks; ++i) {
      if (lease.on_device(i) != on_device || !Holds(lease, i, seed)) return false;
    }
    return true;
  }
  kvcache::BlockLease Lease(int64_t blocks, uint64_t seed) {
    kvcache::BlockLease lease = *from_->AllocateLease(blocks);
    for (int64_t i = 0; i < blocks; ++i) Write(lease, i, seed);
    return lease;
  }
  ExportSpec Spec(int64_t blocks, const std::string& request) {
    return {.request_id = request,
            .epoch = 1,
            .num_tokens = static_cast<uint32_t>(blocks * Layout().block_size),
            .lease = absl::Seconds(20)};
  }
  v1::Ticket Export(int64_t blocks, uint64_t seed, const std::string& request = "r1") {
    return *exporter_->ExportSealed(Spec(blocks, request), Lease(blocks, seed));
  }
  FetchRequest Ask(const v1::Ticket& ticket, uint32_t attempt = 1) {
    FetchRequest request;
    request.ticket = ticket;
    request.attempt = attempt;
    request.destination = *to_->AllocateLease(ticket.blocks_size());
    request.deadline = Soon();
    return request;
  }
  // While an engine would do what it is asked for.
  absl::StatusOr<FetchStats> WaitServing(Outcome* outcome, int* copies) {
    *copies = 0;
    Eventually([&] {
      *copies += ServeCopies();
      return outcome->calls() > 0;
    });
    return outcome->Wait();
  }
  bool HostsUntouched() const {
    return testing::PoolHash(*from_) == untouched_ && testing::PoolHash(*to_) == untouched_;
  }

  kernels::cuda::CudaBackend backend_;
  uint64_t untouched_ = 0;  // of the host's memory
  Mutex mu_;
  std::deque<std::pair<kvcache::BlockLease, std::function<void()>>> copies_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<TransportClient> client_;
  TransportClient* nccl_ = nullptr;
};

TEST_F(NcclDeviceTest, BlocksGoFromDeviceToDeviceAndTheHostsMemoryHasNoPartInIt) {
  Start();
  for (const auto& [haste, seed] :
       {std::pair{Haste::kLazy, 0u}, {Haste::kEager, 0u}, {Haste::kRandom, 1u}, {Haste::kRandom, 2u}}) {
    SCOPED_TRACE(static_cast<int>(haste) * 10 + static_cast<int>(seed));
    cuda_emulator::SetHaste(haste, seed);
    const uint64_t before = service_->counters().device_bytes;
    // Sealed bit by bit, as prefill does it.
    kvcache::BlockLease lease = Lease(kBlocks, seed);
    const auto ticket = exporter_->Export(Spec(kBlocks, "r" + std::to_string(seed)), std::move(lease));
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    Outcome outcome;
    client_->Fetch(Ask(*ticket), outcome.Callback());
    for (const size_t sealed : {1, 2, 7}) {
      exporter_->Seal(TransferId::Of(*ticket), sealed);
      EXPECT_TRUE(Eventually([&] {
        return service_->counters().device_bytes - before == sealed * Layout().block_bytes();
      }));
    }
    exporter_->Close(TransferId::Of(*ticket), false, "the end");
    const auto stats = outcome.Wait();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->detail, "loopback, device memory");
    EXPECT_EQ(outcome.payload(), "the end");
    EXPECT_TRUE(HoldsAll(outcome.destination(), kBlocks, seed, /*on_device=*/true));
    EXPECT_TRUE(HostsUntouched());
    EXPECT_EQ(ServeCopies(), 0);
    // What becomes a sequence's is not copied either.
    auto table = to_->Adopt(std::move(outcome.destination()));
    ASSERT_TRUE(table.ok());
    EXPECT_EQ(to_->device()->copied().to_device, 0);
    kvcache::BlockLease again = to_->Lease(*table, kBlocks);
    for (int64_t i = 0; i < kBlocks; ++i) again.SetOnDevice(i, true);
    EXPECT_TRUE(HoldsAll(again, kBlocks, seed, true));
    EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; }));
  }
}

TEST_F(NcclDeviceTest, AlteredBytesAreDataLoss) {
  Start();
  LoopbackFaults().corrupt_at_group = 2;
  Outcome outcome;
  nccl_->Fetch(Ask(Export(kBlocks, 3)), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kDataLoss) << outcome.Wait().status();
  for (int64_t i = 0; i < kBlocks; ++i) {
    if (outcome.destination().on_device(i)) {
      EXPECT_TRUE(Holds(outcome.destination(), i, 3)) << i;
    }
  }
  EXPECT_FALSE(outcome.destination().on_device(kBlocks - 1));
  EXPECT_TRUE(HostsUntouched());
  // The link is as good as before.
  outcome.destination().Reset();
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; }));
  Outcome next;
  nccl_->Fetch(Ask(Export(kBlocks, 4, "r2")), next.Callback());
  const auto stats = next.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(HoldsAll(next.destination(), kBlocks, 4, /*on_device=*/true));
  EXPECT_EQ(service_->counters().comms, 1u);
}

// Tags are made of the host's bytes: which are copied when the claim asks for them.
TEST_F(NcclDeviceTest, BlocksWithTagsGoByTheHost) {
  Start({}, /*tags=*/true);
  Outcome outcome;
  client_->Fetch(Ask(Export(kBlocks, 4)), outcome.Callback());
  int copies = 0;
  const auto stats = WaitServing(&outcome, &copies);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->transport, "nccl");
  EXPECT_EQ(stats->detail, "loopback");
  EXPECT_EQ(copies, 1);
  EXPECT_EQ(service_->counters().device_bytes, 0u);
  EXPECT_TRUE(HoldsAll(outcome.destination(), kBlocks, 4, /*on_device=*/false));
}

// Checksums are the same wherever they are made, so either side chooses for itself.
// A claim of the host's memory that is there before the blocks are.
TEST_F(NcclDeviceTest, BlocksThatAreSealedLaterAreAskedForThen) {
  Start({}, /*tags=*/true);
  const auto ticket = exporter_->Export(Spec(kBlocks, "r1"), Lease(kBlocks, 11));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  Outcome outcome;
  client_->Fetch(Ask(*ticket), outcome.Callback());
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 1; }));
  EXPECT_EQ(ServeCopies(), 0) << "nothing is sealed";
  exporter_->Seal(TransferId::Of(*ticket), 2);
  EXPECT_EQ(ServeCopies(), 1);
  EXPECT_EQ(from_->device()->copied().to_host, 2);
  exporter_->Seal(TransferId::Of(*ticket), 2);
  EXPECT_EQ(ServeCopies(), 0);
  exporter_->Seal(TransferId::Of(*ticket), 7);
  EXPECT_EQ(ServeCopies(), 1);
  EXPECT_EQ(from_->device()->copied().to_host, 7);
  exporter_->Close(TransferId::Of(*ticket), false, "");
  EXPECT_EQ(ServeCopies(), 1);
  EXPECT_EQ(from_->device()->copied().to_host, kBlocks);
  const auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(HoldsAll(outcome.destination(), kBlocks, 11, /*on_device=*/false));
}

class OneSideTest : public NcclDeviceTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Sides, OneSideTest, ::testing::Bool());

// Checksums are the same wherever they are made, so either side chooses for itself.
TEST_P(OneSideTest, TheOtherMayBeOnTheHost) {
  const bool from_device = GetParam();
  Start({}, false, from_device, !from_device);
  Outcome outcome;
  client_->Fetch(Ask(Export(kBlocks, 5)), outcome.Callback());
  const auto stats = outcome.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(HoldsAll(outcome.destination(), kBlocks, 5, /*on_device=*/!from_device));
  EXPECT_EQ(service_->counters().device_bytes, from_device ? kBlocks * Layout().block_bytes() : 0);
}

TEST_F(NcclDeviceTest, ABrokenLinksFetchGoesOnByTheHostsMemory) {
  Start();
  LoopbackFaults().break_at_group = 2;
  Outcome outcome;
  client_->Fetch(Ask(Export(kBlocks, 6)), outcome.Callback());
  int copies = 0;
  const auto stats = WaitServing(&outcome, &copies);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->transport, "grpc");
  EXPECT_EQ(copies, 1);
  EXPECT_GT(service_->counters().device_bytes, 0u) << "it began on the device";
  // All of it by the second way: what the first one wrote counts no more, and is overwritten when it is adopted.
  EXPECT_TRUE(HoldsAll(outcome.destination(), kBlocks, 6, /*on_device=*/false));
  auto table = to_->Adopt(std::move(outcome.destination()));
  ASSERT_TRUE(table.ok());
  to_->device()->Wait(to_->device()->latest());
  EXPECT_EQ(to_->device()->copied().to_device, kBlocks);
  kvcache::BlockLease adopted = to_->Lease(*table, kBlocks);
  for (int64_t i = 0; i < kBlocks; ++i) adopted.SetOnDevice(i, true);
  EXPECT_TRUE(HoldsAll(adopted, kBlocks, 6, true));
}

TEST_F(NcclDeviceTest, AStuckPeerHoldsNoBlock) {
  NcclOptions options;
  options.group_timeout = kShort;
  Start(options);
  LoopbackFaults().hang_at_group = 2;
  const v1::Ticket ticket = Export(kBlocks, 7);
  Outcome outcome;
  nccl_->Fetch(Ask(ticket), outcome.Callback());
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kUnavailable) << outcome.Wait().status();
  EXPECT_EQ(outcome.destination().blocks().size(), static_cast<size_t>(kBlocks));
  outcome.destination().Reset();
  EXPECT_EQ(to_->ledger().free, kBlocks);
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().in_flight == 0; }));
  LoopbackFaults().hang_at_group = 0;
  Outcome second;
  nccl_->Fetch(Ask(ticket, 2), second.Callback());
  const auto stats = second.Wait();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_TRUE(HoldsAll(second.destination(), kBlocks, 7, true));
}

// What comes after a fetch was given up goes no further than the staging memory.
TEST_F(NcclDeviceTest, AFetchThatWasGivenUpWritesNothingAnyMore) {
  NcclOptions options;
  std::atomic<int> groups = 0;
  std::atomic<bool> hold = true;
  options.before_group_for_test = [&](TransferId, uint64_t) {
    if (++groups == 2) Eventually([&] { return !hold; });
  };
  Start(options);
  Outcome outcome;
  const FetchId id = nccl_->Fetch(Ask(Export(kBlocks, 8)), outcome.Callback());
  EXPECT_TRUE(Eventually([&] { return groups == 2; }));
  nccl_->Cancel(id);
  EXPECT_EQ(outcome.Wait().status().code(), absl::StatusCode::kCancelled);
  kvcache::BlockLease mine = std::move(outcome.destination());
  for (int64_t i = 0; i < kBlocks; ++i) Write(mine, i, 9);
  hold = false;
  EXPECT_TRUE(Eventually([&] { return exporter_->counters().outstanding == 0; }));
  for (int64_t i = 0; i < kBlocks; ++i) mine.SetOnDevice(i, true);
  EXPECT_TRUE(HoldsAll(mine, kBlocks, 9, true));
  EXPECT_TRUE(HostsUntouched());
}

// The host's memory gets blocks that nobody holds any more but the copy; then they are free.
TEST_F(NcclDeviceTest, ACopyToTheHostMayEndAfterItsExportAndItsExporter) {
  Start();
  const v1::Ticket ticket = Export(kBlocks, 10);
  v1::FetchOpen open;
  *open.mutable_ticket() = ticket;
  open.set_attempt(1);
  {
    absl::StatusOr<Claim> claim = exporter_->ClaimTicket(open);
    ASSERT_TRUE(claim.ok());
    EXPECT_FALSE(claim->from_device());
    EXPECT_FALSE(claim->HasBlock()) << "its bytes are not there yet";
  }
  exporter_->ReleaseAll();
  EXPECT_EQ(from_->ledger().leased, kBlocks) << "by the copy";
  client_->Shutdown();
  server_->Shutdown();
  port_->Shutdown();
  service_.reset();
  server_.reset();
  port_.reset();
  exporter_.reset();
  EXPECT_EQ(ServeCopies(), 1);
  EXPECT_EQ(from_->ledger().free, kBlocks);
}

}  // namespace
}  // namespace baton::kvtransfer
