// The engine on the real SmolLM2: requests together, through a pool that is too small and a hand-over, answer as alone.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/engine_test_util.h"
#include "tests/model/model_runner_util.h"

namespace baton::engine {
namespace {

constexpr char kModel[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr int kVocab = 49152;

// A core on the real model that is driven until all is done.
struct ModelEngine {
  ModelEngine(model::ModelRunner* runner, int64_t num_blocks, int max_batch_tokens, bool prefix_cache) {
    EngineOptions options;
    options.num_blocks = num_blocks;
    options.max_batch_tokens = max_batch_tokens;
    options.prefix_cache = prefix_cache;
    options.eos_token_ids = {2};
    core = EngineCore::Create(options, runner, &clock).value();
  }
  void RunDry() {
    while (!core->Quiet()) ASSERT_TRUE(core->Step()) << "stuck";
    const kvcache::Ledger ledger = core->pool()->ledger();
    EXPECT_TRUE(ledger.Balanced());
    EXPECT_EQ(ledger.active, 0);
  }
  SimulatedClock clock;
  std::unique_ptr<EngineCore> core;
};

Answer Alone(model::ModelRunner* runner, const Request& request) {
  ModelEngine engine(runner, 64, 64, false);
  auto sink = std::make_shared<RecordingSink>();
  engine.core->Submit(request, Mode::kComplete, sink, engine.clock.Now());
  engine.RunDry();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  return sink->answer;
}

TEST(EngineModelTest, TogetherEqualsAloneTokenForToken) {
  const auto file = model::GgufFile::Open(model::ModelPath(kModel));
  ASSERT_TRUE(file.ok()) << file.status() << "\nRun scripts/setup first.";
  const auto loaded = model::LoadTestModel(*file, {.numerics = kernels::NumericsClass::kInt});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  model::ModelRunner* runner = loaded->transformer.get();

  std::mt19937_64 rng(2);
  std::vector<Request> requests;
  std::vector<Answer> alone;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(RandomRequest(rng, "r" + std::to_string(i), kVocab, 48, 40, 2));
    alone.push_back(Alone(runner, requests.back()));
  }

  // 88 positions take 6 blocks of 16; 7 blocks for eight requests preempt, and chunks of 20 rows split prompts.
  ModelEngine together(runner, 7, 20, true);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<RecordingSink>());
    together.core->Submit(request, Mode::kComplete, sinks.back(), together.clock.Now());
  }
  together.RunDry();
  int preemptions = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(sinks[i]->status.ok()) << sinks[i]->status;
    EXPECT_EQ(sinks[i]->answer, alone[i]) << requests[i].request_id;
    preemptions += sinks[i]->stats.num_preemptions;
  }
  EXPECT_GT(preemptions, 0) << "the pool was not small enough to show anything";

  ModelEngine prefill(runner, 64, 20, true);
  ModelEngine decode(runner, 64, 7, true);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto first = std::make_shared<RecordingSink>();
    prefill.core->Submit(requests[i], Mode::kPrefill, first, prefill.clock.Now());
    prefill.RunDry();
    std::map<int, std::vector<int32_t>> ids = first->answer.token_ids;
    if (!first->lease.empty()) {
      kvcache::BlockLease room;
      decode.core->Reserve("x", static_cast<int>(requests[i].prompt_token_ids.size()), absl::InfiniteFuture(),
                           [&](absl::StatusOr<kvcache::BlockLease> lease) { room = *std::move(lease); });
      decode.core->Step();
      ASSERT_EQ(room.blocks().size(), first->lease.blocks().size());
      for (size_t b = 0; b < room.blocks().size(); ++b) {
        std::memcpy(room.bytes(b).data(), first->lease.bytes(b).data(), room.bytes(b).size());
      }
      first->lease.Reset();
      auto second = std::make_shared<RecordingSink>(1);
      decode.core->SubmitDecode(requests[i], std::move(room), first->tokens, second, decode.clock.Now());
      decode.RunDry();
      ASSERT_TRUE(second->status.ok()) << second->status;
      for (const auto& [choice, more] : second->answer.token_ids) {
        ids[choice].insert(ids[choice].end(), more.begin(), more.end());
      }
    }
    EXPECT_EQ(ids, alone[i].token_ids) << requests[i].request_id;
  }
}

}  // namespace
}  // namespace baton::engine
