// Engines on the emulated device, whose memory host code cannot touch: KV is made there, exported, fetched, cached,
// shared, copied on write, evicted and handed back as history, and the tokens are the CPU's, whenever the device does
// its work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/tensor_parallel.h"
#include "tests/engine/engine_test_util.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/exactness.h"

namespace baton::engine {
namespace {

using cuda_emulator::Haste;
using kernels::NumericsClass;
using kernels::cuda::TensorParallelBackend;

constexpr int kVocab = 280;
#ifdef BATON_SANITIZE
constexpr bool kWhole = false;  // all is ten times slower: too few requests to meet every case
constexpr int kRequests = 3, kMaxOutput = 4;
#else
constexpr bool kWhole = true;
constexpr int kRequests = 6, kMaxOutput = 12;
#endif

// A core on a model, driven until all is done.
struct ModelEngine {
  ModelEngine(model::ModelRunner* runner, int64_t num_blocks, int max_batch_tokens) {
    EngineOptions options;
    options.num_blocks = num_blocks;
    options.max_batch_tokens = max_batch_tokens;
    options.block_size = 4;
    options.eos_token_ids = {258};
    core = EngineCore::Create(options, runner, &clock).value();
  }
  template <typename Sink>
  std::shared_ptr<Sink> Run(const Request& request, Mode mode, std::shared_ptr<Sink> sink) {
    core->Submit(request, mode, sink, clock.Now());
    RunDry();
    return sink;
  }
  void RunDry() {
    while (!core->Quiet()) ASSERT_TRUE(core->Step()) << "stuck";
    EXPECT_TRUE(core->pool()->ledger().Balanced());
  }
  SimulatedClock clock;
  std::unique_ptr<EngineCore> core;
};

struct HistorySink : RecordingSink {
  HistorySink() : RecordingSink(1) {}
  void OnHistory(std::vector<int32_t> ids, kvcache::BlockLease blocks) override {
    token_ids = std::move(ids);
    for (size_t i = 0; i < blocks.blocks().size(); ++i)
      bytes.insert(bytes.end(), blocks.bytes(i).begin(), blocks.bytes(i).end());
  }
  std::vector<int32_t> token_ids;
  std::vector<std::byte> bytes;
};

class KvBlocksTest : public testing::Test {
 protected:
  KvBlocksTest()
      : file_(model::GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf({.ffn_dim = 128}), "tiny.gguf")).value()),
        cpu_(model::LoadTestModel(file_, {.numerics = NumericsClass::kF32, .num_threads = 1}).value()) {
    std::mt19937_64 rng(4);
    for (int i = 0; i < kRequests; ++i) {
      requests_.push_back(RandomRequest(rng, "r" + std::to_string(i), kVocab, 30, kMaxOutput, 3));
      requests_.back().tenant = "t";
      SamplingParams& sampling = requests_.back().sampling;
      sampling.max_tokens = kMaxOutput;
      sampling.ignore_eos = true;
      sampling.stop_token_ids.clear();
      std::vector<int32_t>& prompt = requests_.back().prompt_token_ids;
      for (size_t k = 0; k < std::min<size_t>(prompt.size(), 10); ++k) prompt[k] = static_cast<int32_t>(k * 7 + 3);
    }
    WantAnswersOf(cpu_.transformer.get());
  }
  // Each request alone.
  void WantAnswersOf(model::ModelRunner* runner) {
    want_.clear();
    for (const Request& request : requests_) {
      ModelEngine alone(runner, 64, 64);
      want_.push_back(alone.Run(request, Mode::kComplete, std::make_shared<RecordingSink>())->answer);
    }
  }
  ~KvBlocksTest() override { cuda_emulator::SetHaste(Haste::kLazy); }

  // Hands over from one engine of `from` to one of `to`; the histories of decode.
  std::vector<std::shared_ptr<HistorySink>> HandOver(model::ModelRunner* from, model::ModelRunner* to) {
    // Room for one at a time (42 positions of 3 choices), so that ids are reused and cached prefixes evicted.
    ModelEngine prefill(from, 12, 7), decode(to, 34, 16);
    std::vector<std::shared_ptr<HistorySink>> decoded;
    for (int i = 0; i < kRequests; ++i) {
      const Request& request = requests_[i];
      const auto first = prefill.Run(request, Mode::kPrefill, std::make_shared<RecordingSink>());
      EXPECT_TRUE(first->status.ok()) << first->status;
      std::map<int, std::vector<int32_t>> ids = first->answer.token_ids;
      decoded.push_back(std::make_shared<HistorySink>());
      if (!first->lease.empty()) {
        kvcache::BlockLease room;
        decode.core->Reserve("x", static_cast<int>(request.prompt_token_ids.size()), absl::InfiniteFuture(),
                             [&](absl::StatusOr<kvcache::BlockLease> lease) { room = *std::move(lease); },
                             {request.tenant, request.prompt_token_ids});
        decode.core->Step();
        held_ += room.num_held();
        for (size_t b = room.num_held(); b < room.blocks().size(); ++b) {
          std::memcpy(room.bytes(b).data(), first->lease.bytes(b).data(), room.bytes(b).size());
        }
        first->lease.Reset();
        decode.core->SubmitDecode(request, std::move(room), first->tokens, decoded.back(), decode.clock.Now());
        decode.RunDry();
        EXPECT_TRUE(decoded.back()->status.ok()) << decoded.back()->status;
        for (const auto& [choice, more] : decoded.back()->answer.token_ids) {
          ids[choice].insert(ids[choice].end(), more.begin(), more.end());
        }
      }
      EXPECT_EQ(ids, want_[i].token_ids) << request.request_id;
    }
    return decoded;
  }

  model::GgufFile file_;
  model::TestModel cpu_;
  std::vector<Request> requests_;
  std::vector<Answer> want_;
  size_t held_ = 0;
};

TEST_F(KvBlocksTest, HandedOverTokensAndHistoryAreTheCpusWheneverTheDeviceWorks) {
  const auto want = HandOver(cpu_.transformer.get(), cpu_.transformer.get());
  EXPECT_GE(held_, kWhole ? 1u : 0u) << "no prompt began like another";
  size_t histories = 0;
  for (const auto& [haste, seed] :
       {std::pair{Haste::kLazy, 0u}, {Haste::kEager, 0u}, {Haste::kRandom, 1u}, {Haste::kRandom, 2u}}) {
    SCOPED_TRACE(static_cast<int>(haste) * 10 + static_cast<int>(seed));
    cuda_emulator::SetHaste(haste, seed);
    kernels::cuda::CudaBackend backend;
    const auto device = model::Transformer::Load(file_, &backend, {.max_batch_rows = 64, .device = &backend}).value();
    const auto got = HandOver(device.get(), device.get());
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(got[i]->token_ids, want[i]->token_ids) << i;
      EXPECT_TRUE(got[i]->bytes == want[i]->bytes) << i;
      histories += !got[i]->bytes.empty();
    }
  }
  EXPECT_GE(histories, kWhole ? 1u : 0u);
}

// Blocks on the host are those of all heads, however many devices have computed them.
TEST_F(KvBlocksTest, PoolsOverOtherNumbersOfDevicesHandOver) {
  struct Split {
    Split(const model::GgufFile& file, int ranks)
        : backend(TensorParallelBackend::Create(NumericsClass::kF32, {.ranks = ranks, .slices = 2}).value()),
          model(model::Transformer::Load(file, backend.get(), {.max_batch_rows = 64, .device = backend.get()}).value()) {}
    std::unique_ptr<TensorParallelBackend> backend;
    std::unique_ptr<model::Transformer> model;
  };
  const Split one(file_, 1), two(file_, 2);
  WantAnswersOf(one.model.get());
  const auto want = HandOver(one.model.get(), one.model.get());
  for (const auto& [from, to, haste] :
       {std::tuple{&one, &two, Haste::kLazy}, {&two, &one, Haste::kRandom}, {&two, &two, Haste::kRandom}}) {
    SCOPED_TRACE(from->backend->name() + " to " + to->backend->name());
    cuda_emulator::SetHaste(haste, 5);
    const auto got = HandOver(from->model.get(), to->model.get());
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(got[i]->token_ids, want[i]->token_ids) << i;
      EXPECT_TRUE(got[i]->bytes == want[i]->bytes) << i;
    }
  }
}

TEST_F(KvBlocksTest, TogetherInLittleMemoryTheyAnswerAsAlone) {
  kernels::cuda::CudaBackend backend;
  const auto device = model::Transformer::Load(file_, &backend, {.max_batch_rows = 64, .device = &backend}).value();
  ModelEngine together(device.get(), 12, 10);  // one request with its choices does not fit at times
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : requests_) {
    sinks.push_back(std::make_shared<RecordingSink>());
    together.core->Submit(request, Mode::kComplete, sinks.back(), together.clock.Now());
  }
  together.RunDry();
  int preemptions = 0;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(sinks[i]->status.ok()) << sinks[i]->status;
    EXPECT_EQ(sinks[i]->answer, want_[i]) << i;
    preemptions += sinks[i]->stats.num_preemptions;
  }
  EXPECT_GE(preemptions, kWhole ? 1 : 0);
}

}  // namespace
}  // namespace baton::engine
