// KV blocks in a device's memory: each copy between there and the host, one at a time (the random runs are in
// engine_exactness_test). Until a copy is done its destination holds garbage.
#include <gtest/gtest.h>

#include <cstring>

#include "kvcache/device_blocks.h"
#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

using fakes::LateDeviceSpace;

TestEngine OnDevice(EngineOptions options = Roomy(), LateDeviceSpace::Done done = LateDeviceSpace::Done::kLast) {
  return TestEngine(options, {}, std::make_unique<LateDeviceSpace>(1, done));
}

Request PromptOf(int num_tokens, int max_tokens, const std::string& id = "r") {
  Request request;
  request.request_id = id;
  for (int i = 0; i < num_tokens; ++i) request.prompt_token_ids.push_back((i * 7 + 3) % 101);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 9;
  return request;
}

// The blocks as the bytes a transport would read.
std::vector<std::vector<std::byte>> BytesOf(const kvcache::BlockLease& lease, size_t num_blocks) {
  std::vector<std::vector<std::byte>> bytes;
  for (size_t i = 0; i < num_blocks; ++i) bytes.emplace_back(lease.bytes(i).begin(), lease.bytes(i).end());
  return bytes;
}

// Keeps what could be exported at the moment it hears of it.
class ExportSink : public RecordingSink {
 public:
  explicit ExportSink(int first_token_index = 0) : RecordingSink(first_token_index) {}
  void OnComputed(int computed) override {
    RecordingSink::OnComputed(computed);
    if (first_told_at < 0 && model != nullptr) first_told_at = static_cast<int>(model->num_steps());
    sealed = BytesOf(lease, static_cast<size_t>(computed / 4));
  }
  void OnHistory(std::vector<int32_t> ids, kvcache::BlockLease blocks) override {
    EXPECT_FALSE(done());
    history = BytesOf(blocks, blocks.blocks().size());
    EXPECT_EQ(ids.size(), history.size() * 4);
  }
  void OnDone(const absl::Status& s, const RequestStats& st) override {
    whole = BytesOf(lease, lease.blocks().size());
    RecordingSink::OnDone(s, st);
  }
  std::vector<std::vector<std::byte>> sealed, whole, history;
  const fakes::HashModel* model = nullptr;
  int first_told_at = -1;  // forward passes before
};

std::shared_ptr<ExportSink> Prefill(TestEngine* engine, const Request& request) {
  auto sink = std::make_shared<ExportSink>();
  sink->model = engine->model.get();
  engine->core->Submit(request, Mode::kPrefill, sink, engine->clock.Now());
  engine->RunDry();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  return sink;
}

kvcache::BlockLease Room(TestEngine* engine, const Request& request) {
  kvcache::BlockLease room;
  engine->core->Reserve(request.request_id, static_cast<int>(request.prompt_token_ids.size()), absl::InfiniteFuture(),
                        [&](absl::StatusOr<kvcache::BlockLease> lease) { room = *std::move(lease); },
                        {request.tenant, request.prompt_token_ids});
  engine->Step();
  EXPECT_FALSE(room.empty());
  return room;
}

// As a transport: what the lease holds already is not fetched.
void Fetch(const kvcache::BlockLease& from, const kvcache::BlockLease& to) {
  for (size_t i = to.num_held(); i < to.blocks().size(); ++i) {
    std::memcpy(to.bytes(i).data(), from.bytes(i).data(), from.bytes(i).size());
  }
}

std::shared_ptr<ExportSink> Decode(TestEngine* engine, const Request& request, const ExportSink& prefill) {
  kvcache::BlockLease room = Room(engine, request);
  Fetch(prefill.lease, room);
  auto sink = std::make_shared<ExportSink>(1);
  engine->core->SubmitDecode(request, std::move(room), prefill.tokens, sink, engine->clock.Now());
  engine->RunDry();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  return sink;
}

std::map<int, std::vector<int32_t>> Joined(const ExportSink& prefill, const ExportSink& decode) {
  auto ids = prefill.answer.token_ids;
  for (const auto& [choice, more] : decode.answer.token_ids) {
    ids[choice].insert(ids[choice].end(), more.begin(), more.end());
  }
  return ids;
}

TEST(DeviceKvTest, WhatIsExportedWasCopiedToTheHostFirst) {
  EngineOptions options = Roomy();
  options.max_batch_tokens = 6;  // chunks that end inside blocks of 4
  const Request request = PromptOf(23, 8);
  TestEngine host(options);
  TestEngine device = OnDevice(options);
  const auto want = Prefill(&host, request), got = Prefill(&device, request);
  EXPECT_EQ(got->num_computed, 23);
  EXPECT_EQ(got->sealed, want->sealed);
  EXPECT_EQ(got->whole, want->whole) << "with the last block, which the prompt does not fill";
  EXPECT_EQ(device.device->downloads, 6);
  EXPECT_EQ(device.device->uploads, 0);
}

// A transport reads them there; the host's memory gets those that somebody asks for.
TEST(DeviceKvTest, WhatIsExportedFromTheDeviceIsCopiedWhenAsked) {
  EngineOptions options = Roomy();
  options.max_batch_tokens = 6;
  const Request request = PromptOf(23, 8);
  TestEngine host(options);
  options.exports_from_device = true;
  TestEngine device = OnDevice(options);
  const auto want = Prefill(&host, request), got = Prefill(&device, request);
  EXPECT_EQ(got->num_computed, 23);
  EXPECT_EQ(device.device->downloads, 0);
  std::vector<std::vector<std::byte>> there;  // the test's device is ordinary memory
  for (size_t i = 0; i < got->lease.blocks().size(); ++i) {
    there.emplace_back(got->lease.device_bytes(i), got->lease.device_bytes(i) + got->lease.bytes(i).size());
  }
  EXPECT_EQ(there, want->whole);
  EXPECT_NE(BytesOf(got->lease, 6), want->whole);
  bool done = false;
  device.core->CopyToHost(got->lease.Share(0, 6), [&] {
    done = true;
    EXPECT_EQ(BytesOf(got->lease, 6), want->whole);
  });
  EXPECT_FALSE(done);
  device.RunDry();
  EXPECT_TRUE(done);
  EXPECT_EQ(device.core->load().blocks_to_host, 6);
}

// Written by a lane, as a transport's that receives into the device's memory.
TEST(DeviceKvTest, WhatCameToTheDeviceIsNotCopiedThere) {
  const Request request = PromptOf(23, 8);
  EngineOptions options = Roomy();
  options.exports_from_device = true;
  TestEngine prefill = OnDevice(options), decode = OnDevice(options);
  const auto first = Prefill(&prefill, request);
  kvcache::BlockLease room = Room(&decode, request);
  for (size_t i = 0; i < room.blocks().size(); ++i) {
    std::memcpy(room.device_bytes(i), first->lease.device_bytes(i), room.bytes(i).size());
    room.SetOnDevice(i, true);
  }
  auto sink = std::make_shared<ExportSink>(1);
  decode.core->SubmitDecode(request, std::move(room), first->tokens, sink, decode.clock.Now());
  decode.RunDry();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(Joined(*first, *sink), RunAlone(request).token_ids);
  EXPECT_EQ(decode.device->uploads + decode.device->downloads, 0);
}

TEST(DeviceKvTest, StepsGoOnWhileBlocksAreCopied) {
  EngineOptions options = Roomy();
  options.max_batch_tokens = 8;
  TestEngine device = OnDevice(options);
  const auto prefill = Prefill(&device, PromptOf(32, 8));
  EXPECT_EQ(prefill->first_told_at, 4) << "nobody waited for the first chunk's copy before the last was computed";
}

TEST(DeviceKvTest, FetchedBlocksAreCopiedToTheDeviceBeforeTheyAreUsed) {
  const Request request = PromptOf(23, 8);
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto first = Prefill(&prefill, request), second = Decode(&decode, request, *first);
  EXPECT_EQ(Joined(*first, *second), RunAlone(request).token_ids);
  EXPECT_EQ(decode.device->uploads, 6);
}

TEST(DeviceKvTest, OthersDecodeWhileAPromptIsCopied) {
  const Request request = PromptOf(23, 8), other = PromptOf(5, 30, "other");
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto first = Prefill(&prefill, request);
  const auto running = decode.Submit(other);
  decode.Step();
  kvcache::BlockLease room = Room(&decode, request);
  Fetch(first->lease, room);
  auto second = std::make_shared<ExportSink>(1);
  decode.core->SubmitDecode(request, std::move(room), first->tokens, second, decode.clock.Now());
  const size_t before = running->tokens.size();
  for (int i = 0; i < 5; ++i) decode.Step();
  EXPECT_EQ(running->tokens.size(), before + 5);
  EXPECT_TRUE(second->tokens.empty()) << "the copy is not done";
  decode.RunDry();
  EXPECT_EQ(Joined(*first, *second), RunAlone(request).token_ids);
  EXPECT_EQ(running->answer, RunAlone(other));
}

TEST(DeviceKvTest, APrefixThatWasFetchedIsHit) {
  const Request request = PromptOf(24, 6);
  Request again = PromptOf(24, 6, "again");
  again.prompt_token_ids.push_back(50);
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto first = Prefill(&prefill, request);
  Decode(&decode, request, *first);
  // Computed here behind the cached blocks.
  const auto local = decode.Submit(again);
  decode.RunDry();
  EXPECT_EQ(local->answer, RunAlone(again));
  EXPECT_EQ(local->stats.cached_tokens, 24);
  // Fetched behind them: they are not copied once more.
  const int uploads = decode.device->uploads;
  Request third = PromptOf(30, 6, "third");
  const auto more = Prefill(&prefill, third);
  EXPECT_EQ(Joined(*more, *Decode(&decode, third, *more)), RunAlone(third).token_ids);
  EXPECT_EQ(decode.device->uploads - uploads, 2);
}

TEST(DeviceKvTest, AnAdoptedPrefixIsHit) {
  const Request request = PromptOf(24, 6);
  TestEngine prefill = OnDevice(), other = OnDevice();
  const auto first = Prefill(&prefill, request);
  kvcache::BlockLease room = Room(&other, request);
  Fetch(first->lease, room);
  other.core->AdoptPrefix(request.tenant, request.prompt_token_ids, std::move(room));
  other.RunDry();
  Request longer = PromptOf(26, 6);
  const auto hit = Prefill(&other, longer);
  EXPECT_EQ(hit->stats.cached_tokens, 24);
  TestEngine host(Roomy());
  EXPECT_EQ(hit->whole, Prefill(&host, longer)->whole);
  EXPECT_EQ(other.device->downloads, 1) << "the others are on the host since they were fetched";
}

TEST(DeviceKvTest, ACachedPrefixIsCopiedToTheHostOnce) {
  Request request = PromptOf(24, 6);
  TestEngine device = OnDevice();
  device.Submit(request);  // nothing of it is exported
  device.RunDry();
  EXPECT_EQ(device.device->downloads, 0);
  TestEngine host(Roomy());
  for (int i = 0; i < 2; ++i) {
    Request longer = PromptOf(26, 6, "longer");
    EXPECT_EQ(Prefill(&device, longer)->whole, Prefill(&host, longer)->whole);
    EXPECT_EQ(device.device->downloads, 7 + i);
  }
}

TEST(DeviceKvTest, ChoicesCopyThePartOfABlockThatTheyShareOnTheDevice) {
  Request request = PromptOf(22, 9);
  request.sampling.n = 3;
  const Answer want = RunAlone(request);
  TestEngine one = OnDevice();
  const auto sink = one.Submit(request);
  one.RunDry();
  EXPECT_EQ(sink->answer, want);
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto first = Prefill(&prefill, request);
  EXPECT_EQ(Joined(*first, *Decode(&decode, request, *first)), want.token_ids);
}

TEST(DeviceKvTest, ABlockThatDecodeFilledIsCopiedToTheHostForTheHistory) {
  const Request request = PromptOf(22, 12);  // the last block of the prompt comes half full
  const auto run = [&](TestEngine* prefill, TestEngine* decode) {
    const auto first = Prefill(prefill, request);
    return Decode(decode, request, *first);
  };
  TestEngine host_prefill(Roomy()), host_decode(Roomy());
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto want = run(&host_prefill, &host_decode), got = run(&prefill, &decode);
  EXPECT_EQ(want->history.size(), 8u);
  EXPECT_EQ(got->history, want->history);
  EXPECT_EQ(decode.device->downloads, 3) << "what was fetched is on the host";
}

TEST(DeviceKvTest, HistoryThatNobodyWantsIsNotCopied) {
  class Sink : public ExportSink {
   public:
    Sink() : ExportSink(1) {}
    bool WantsHistory() const override { return false; }
  };
  const Request request = PromptOf(22, 12);
  TestEngine prefill = OnDevice(), decode = OnDevice();
  const auto first = Prefill(&prefill, request);
  kvcache::BlockLease room = Room(&decode, request);
  Fetch(first->lease, room);
  auto sink = std::make_shared<Sink>();
  decode.core->SubmitDecode(request, std::move(room), first->tokens, sink, decode.clock.Now());
  decode.RunDry();
  EXPECT_TRUE(sink->done());
  EXPECT_TRUE(sink->history.empty());
  EXPECT_EQ(decode.device->downloads, 0);
}

// A block id that comes to another tenant: nothing of the former one is there, on either side.
TEST(DeviceKvTest, ReusedBlocksHoldNothingOfTheirFormerTenant) {
  EngineOptions options = Roomy();
  options.num_blocks = 7;
  TestEngine host(options);
  TestEngine device = OnDevice(options);
  for (int i = 0; i < 6; ++i) {
    Request request = PromptOf(22 - i, 4, "r" + std::to_string(i));
    request.tenant = std::to_string(i);
    const auto want = Prefill(&host, request), got = Prefill(&device, request);
    EXPECT_EQ(got->whole, want->whole) << i;
    want->lease.Reset();
    got->lease.Reset();
  }
  device.ExpectAllFree();
}

TEST(DeviceKvTest, BlocksAreHeldUntilTheirCopyIsDone) {
  EngineOptions options = Roomy();
  options.prefix_cache = false;
  options.max_batch_tokens = 8;
  TestEngine device = OnDevice(options);
  const Request request = PromptOf(32, 8);
  auto sink = std::make_shared<ExportSink>();
  device.core->Submit(request, Mode::kPrefill, sink, device.clock.Now());
  device.Step();
  device.core->Cancel("r");
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(device.core->pool()->ledger().leased, 2) << "a copy writes these on the host";
  EXPECT_FALSE(device.core->Quiet());
  EXPECT_TRUE(device.Step());
  EXPECT_TRUE(device.core->Quiet());
  device.ExpectAllFree();

  // The same on the way in.
  TestEngine prefill = OnDevice();
  const auto first = Prefill(&prefill, request);
  kvcache::BlockLease room = Room(&device, request);
  Fetch(first->lease, room);
  auto second = std::make_shared<ExportSink>(1);
  device.core->SubmitDecode(request, std::move(room), first->tokens, second, device.clock.Now());
  device.core->Cancel("r");
  EXPECT_EQ(second->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(device.core->pool()->ledger().active, 8);
  device.RunDry();
  EXPECT_TRUE(second->tokens.empty());
  device.ExpectAllFree();
}

TEST(DeviceKvTest, TheEngineEndsWithCopiesUnderWayAndLeasesOutliveIt) {
  auto space = std::make_unique<LateDeviceSpace>(1, LateDeviceSpace::Done::kLast);
  kvcache::BlockLease kept;
  {
    fakes::HashModel model({.device = space.get()});
    SimulatedClock clock;
    EngineOptions options = Roomy();
    options.max_batch_tokens = 8;
    auto core = EngineCore::Create(options, &model, &clock).value();
    auto sink = std::make_shared<RecordingSink>();
    core->Submit(PromptOf(32, 8), Mode::kPrefill, sink, clock.Now());
    core->Step();
    kept = std::move(sink->lease);
    EXPECT_EQ(space->allocations(), 1u);
  }
  EXPECT_EQ(space->allocations(), 0u) << "the device's memory goes with the engine";
  space.reset();
  EXPECT_EQ(kept.blocks().size(), 8u);
  kept.Reset();
}

TEST(DeviceKvTest, ADeviceWithoutRoomIsSaidWithTheArithmetic) {
  LateDeviceSpace space(1);
  space.room = 1000;
  fakes::HashModel model({.device = &space});
  SimulatedClock clock;
  const auto core = EngineCore::Create(Roomy(), &model, &clock);
  ASSERT_EQ(core.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(core.status().message().find("4096 KV blocks"), absl::string_view::npos) << core.status();
  EXPECT_NE(core.status().message().find("kv_memory_mib"), absl::string_view::npos) << core.status();
}

}  // namespace
}  // namespace baton::engine
