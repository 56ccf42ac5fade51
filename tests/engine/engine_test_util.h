// What engine tests share: a recording sink, random requests from a seed, and the answer of a request run alone.
#ifndef BATON_TESTS_ENGINE_ENGINE_TEST_UTIL_H_
#define BATON_TESTS_ENGINE_ENGINE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "engine/engine_core.h"
#include "engine/request.h"
#include "tests/fakes/hash_model.h"
#include "tests/fakes/late_device_space.h"

namespace baton::engine {

struct Answer {
  std::map<int, std::vector<int32_t>> token_ids;  // by choice
  std::map<int, FinishReason> finish;
  std::map<int, std::vector<float>> logprobs;
  bool operator==(const Answer&) const = default;
};

// Written by the engine's thread; read it after done() is true.
class RecordingSink : public RequestSink {
 public:
  explicit RecordingSink(int first_token_index = 0) : first_index(first_token_index) {}
  void OnToken(const SampledToken& token) override {
    EXPECT_FALSE(done_) << "token after OnDone";
    EXPECT_FALSE(answer.finish.contains(token.choice_index)) << "token after the choice's last";
    auto& ids = answer.token_ids[token.choice_index];
    EXPECT_EQ(token.token_index, first_index + static_cast<int>(ids.size()));
    ids.push_back(token.token_id);
    answer.logprobs[token.choice_index].push_back(token.logprob);
    if (token.finish_reason != FinishReason::kNone) answer.finish[token.choice_index] = token.finish_reason;
    tokens.push_back(token);
  }
  void OnScheduled(kvcache::BlockLease blocks) override {
    EXPECT_FALSE(done_);
    EXPECT_TRUE(lease.empty()) << "scheduled twice";
    lease = std::move(blocks);
  }
  void OnComputed(int num_tokens) override {
    EXPECT_FALSE(done_);
    EXPECT_GT(num_tokens, num_computed);
    num_computed = num_tokens;
  }
  void OnDone(const absl::Status& s, const RequestStats& st) override {
    EXPECT_FALSE(done_) << "OnDone twice";
    status = s;
    stats = st;
    // As a prefill worker does: what failed, or ended with token 0, is not handed over.
    if (!s.ok() || answer.finish.size() == answer.token_ids.size()) lease.Reset();
    done_ = true;
  }
  bool done() const { return done_; }

  const int first_index;  // 1 after a hand-over
  Answer answer;
  std::vector<SampledToken> tokens;
  kvcache::BlockLease lease;
  int num_computed = 0;  // of the prompt, by OnComputed
  absl::Status status;
  RequestStats stats;

 private:
  std::atomic<bool> done_{false};
};

inline Request RandomRequest(std::mt19937_64& rng, const std::string& id, int vocab, int max_prompt, int max_output,
                             int max_n) {
  Request request;
  request.request_id = id;
  const bool common = rng() % 2 == 0;  // half of the prompts share their beginning with others
  const int length = 1 + static_cast<int>(rng() % max_prompt);
  for (int i = 0; i < length; ++i) {
    const bool shared = common && i < max_prompt / 2;
    request.prompt_token_ids.push_back(static_cast<int32_t>(shared ? (i * 7 + 3) % vocab : rng() % vocab));
  }
  request.tenant = rng() % 3 == 0 ? "a" : "b";
  SamplingParams& p = request.sampling;
  p.temperature = rng() % 4 == 0 ? 0.0f : 0.25f * static_cast<float>(1 + rng() % 6);
  if (rng() % 3 == 0) p.top_p = 0.1f * static_cast<float>(1 + rng() % 9);
  if (rng() % 3 == 0) p.top_k = 1 + static_cast<int>(rng() % 20);
  if (rng() % 4 == 0) p.min_p = 0.05f * static_cast<float>(rng() % 5);
  if (rng() % 3 == 0) p.repetition_penalty = 1.3f;
  if (rng() % 4 == 0) p.presence_penalty = 0.7f;
  if (rng() % 4 == 0) p.frequency_penalty = 0.4f;
  if (rng() % 4 == 0) p.logit_bias = {{static_cast<int32_t>(rng() % vocab), 2.5f}};
  p.seed = rng();
  p.max_tokens = 1 + static_cast<int>(rng() % max_output);
  p.min_tokens = static_cast<int>(rng() % 4);
  p.ignore_eos = rng() % 4 == 0;
  if (rng() % 3 == 0) p.stop_token_ids = {static_cast<int32_t>(rng() % vocab)};
  p.logprobs = rng() % 3 == 0 ? 2 : -1;
  p.n = rng() % 3 == 0 ? 1 + static_cast<int>(rng() % max_n) : 1;
  return request;
}

// A core with its own model and a clock that stands still; with a device, its KV is there.
struct TestEngine {
  explicit TestEngine(EngineOptions options, fakes::HashModel::Options model_options = {},
                      std::unique_ptr<fakes::LateDeviceSpace> kv_device = nullptr)
      : device(std::move(kv_device)) {
    model_options.num_blocks = options.num_blocks;
    model_options.device = device.get();
    model = std::make_unique<fakes::HashModel>(model_options);
    auto created = EngineCore::Create(options, model.get(), &clock);
    EXPECT_TRUE(created.ok()) << created.status();
    core = *std::move(created);
  }
  std::shared_ptr<RecordingSink> Submit(Request request, Mode mode = Mode::kComplete) {
    auto sink = std::make_shared<RecordingSink>();
    core->Submit(std::move(request), mode, sink, clock.Now());
    return sink;
  }
  // One step, and the ledger afterwards.
  bool Step() {
    const bool progress = core->Step();
    const kvcache::Ledger ledger = core->pool()->ledger();
    const kvcache::Ledger recount = core->pool()->RecountForTest();
    EXPECT_TRUE(ledger.Balanced());
    EXPECT_EQ(ledger.free, recount.free);
    EXPECT_EQ(ledger.active, recount.active);
    EXPECT_EQ(ledger.leased, recount.leased);
    EXPECT_EQ(ledger.cached, recount.cached);
    return progress;
  }
  // Until nothing is open. Fails when it gets stuck.
  void RunDry(int max_steps = 100000) {
    while (!core->Quiet()) {
      ASSERT_TRUE(Step()) << "stuck with work open";
      ASSERT_GT(--max_steps, 0) << "does not end";
    }
  }
  // Nothing is held but by the prefix cache, and that gives all back.
  void ExpectAllFree() {
    const kvcache::Ledger ledger = core->pool()->ledger();
    EXPECT_EQ(ledger.active, 0);
    EXPECT_EQ(ledger.leased, 0);
    EXPECT_EQ(ledger.quarantined, 0);
    EXPECT_EQ(ledger.free + ledger.cached, ledger.total);
    core->DropPrefixCache();
    EXPECT_EQ(core->pool()->ledger().free, ledger.total);
  }

  std::unique_ptr<fakes::LateDeviceSpace> device;
  SimulatedClock clock;
  std::unique_ptr<fakes::HashModel> model;
  std::unique_ptr<EngineCore> core;
};

inline EngineOptions Roomy() {
  EngineOptions options;
  options.block_size = 4;
  options.num_blocks = 4096;
  options.eos_token_ids = {5, 17};
  return options;
}

// The oracle: the request with nothing beside it, whole prompt in one chunk, room for all, no prefix cache.
inline Answer RunAlone(Request request, fakes::HashModel::Options model_options = {}) {
  EngineOptions options = Roomy();
  options.prefix_cache = false;
  options.max_batch_tokens = 4096;
  TestEngine engine(options, model_options);
  request.deadline = absl::InfiniteFuture();
  auto sink = engine.Submit(std::move(request));
  engine.RunDry();
  EXPECT_TRUE(sink->done());
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  return sink->answer;
}

// True when `part` is a beginning of `whole` in every choice.
inline bool IsPrefix(const Answer& part, const Answer& whole) {
  for (const auto& [choice, ids] : part.token_ids) {
    const auto it = whole.token_ids.find(choice);
    if (it == whole.token_ids.end() || ids.size() > it->second.size()) return false;
    if (!std::equal(ids.begin(), ids.end(), it->second.begin())) return false;
  }
  return true;
}

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_ENGINE_TEST_UTIL_H_
