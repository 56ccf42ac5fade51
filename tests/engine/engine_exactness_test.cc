// The tokens of a request do not depend on what ran beside it, on chunking, preemption, prefix hits or hand-over.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

struct Open {
  Request request;
  std::shared_ptr<RecordingSink> sink;
  int cancel_at = -1;  // step
};

EngineOptions RandomOptions(std::mt19937_64& rng) {
  EngineOptions options = Roomy();
  const int budgets[] = {1, 2, 3, 7, 16, 64, 512};
  options.max_batch_tokens = budgets[rng() % 7];
  options.max_sequences = 1 + static_cast<int>(rng() % 12);
  options.prefix_cache = rng() % 2 == 0;
  // The longest request (40 + 24 positions) takes 16 blocks of 4: pools near that preempt all the time.
  options.num_blocks = 16 + static_cast<int64_t>(rng() % (rng() % 2 == 0 ? 3 : 40));
  return options;
}

// Once with the KV in host memory, once on a device.
class EngineExactnessTest : public testing::TestWithParam<bool> {
 protected:
  static TestEngine NewEngine(const EngineOptions& options, uint64_t seed) {
    return TestEngine(options, {}, GetParam() ? std::make_unique<fakes::LateDeviceSpace>(seed) : nullptr);
  }
};
INSTANTIATE_TEST_SUITE_P(Kv, EngineExactnessTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Device" : "Host"; });

TEST_P(EngineExactnessTest, BatchedEqualsAlone) {
  int64_t preemptions = 0;
  int64_t cached = 0;
  int64_t finished = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    const EngineOptions options = RandomOptions(rng);
    TestEngine engine = NewEngine(options, seed);
    std::vector<Open> open;
    int to_submit = 12;
    for (int step = 0; to_submit > 0 || !engine.core->Quiet(); ++step) {
      ASSERT_LT(step, 100000) << "does not end";
      while (to_submit > 0 && rng() % 3 == 0) {
        Open item;
        item.request = RandomRequest(rng, "r" + std::to_string(to_submit--), 101, 40, 24, 4);
        if (rng() % 4 == 0) item.cancel_at = step + static_cast<int>(rng() % 30);
        item.sink = engine.Submit(item.request);
        open.push_back(std::move(item));
      }
      for (const Open& item : open) {
        if (item.cancel_at == step) engine.core->Cancel(item.request.request_id);
      }
      const bool progress = engine.Step();
      ASSERT_TRUE(progress || engine.core->Quiet()) << "stuck at step " << step;
      ASSERT_LE(engine.model->max_rows(), options.max_batch_tokens);
    }
    for (const Open& item : open) {
      ASSERT_TRUE(item.sink->done());
      const Answer alone = RunAlone(item.request);
      preemptions += item.sink->stats.num_preemptions;
      cached += item.sink->stats.cached_tokens;
      if (item.sink->status.ok()) {
        ++finished;
        ASSERT_EQ(item.sink->answer, alone) << item.request.request_id;
      } else {
        ASSERT_EQ(item.sink->status.code(), absl::StatusCode::kCancelled) << item.sink->status;
        ASSERT_TRUE(IsPrefix(item.sink->answer, alone));
      }
    }
    engine.ExpectAllFree();
  }
  // The runs above are worth something only if they did these things.
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(cached, 100);
  EXPECT_GT(finished, 500);
}

// Copies a lease's bytes as a transport would.
void CopyBlocks(const kvcache::BlockLease& from, const kvcache::BlockLease& to) {
  ASSERT_EQ(from.blocks().size(), to.blocks().size());
  for (size_t i = 0; i < from.blocks().size(); ++i) {
    std::memcpy(to.bytes(i).data(), from.bytes(i).data(), from.bytes(i).size());
  }
}

TEST_P(EngineExactnessTest, HandOverEqualsOneEngine) {
  int64_t handed_over = 0;
  int64_t preemptions = 0;
  for (uint64_t seed = 100; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    TestEngine prefill = NewEngine(RandomOptions(rng), seed);
    TestEngine decode = NewEngine(RandomOptions(rng), seed + 1);
    struct Item {
      Request request;
      std::shared_ptr<RecordingSink> prefill, decode;
      std::optional<kvcache::BlockLease> room;
    };
    std::vector<Item> items(12);
    for (size_t i = 0; i < items.size(); ++i) {
      Item& item = items[i];
      item.request = RandomRequest(rng, "r" + std::to_string(i), 101, 40, 24, 4);
      item.prefill = prefill.Submit(item.request, Mode::kPrefill);
      decode.core->Reserve(item.request.request_id, static_cast<int>(item.request.prompt_token_ids.size()),
                           absl::InfiniteFuture(), [&item](absl::StatusOr<kvcache::BlockLease> lease) {
                             ASSERT_TRUE(lease.ok()) << lease.status();
                             item.room = *std::move(lease);
                           });
    }
    size_t open = items.size();
    for (int step = 0; open > 0; ++step) {
      ASSERT_LT(step, 100000) << "does not end";
      prefill.Step();
      decode.Step();
      open = 0;
      for (Item& item : items) {
        if (item.prefill->done() && item.room.has_value() && !item.decode) {
          ASSERT_TRUE(item.prefill->status.ok()) << item.prefill->status;
          item.decode = std::make_shared<RecordingSink>(1);
          if (item.prefill->lease.empty()) {
            // Every choice ended with token 0: no decode.
            item.room.reset();
            item.decode->OnDone(absl::OkStatus(), {});
            continue;
          }
          ++handed_over;
          CopyBlocks(item.prefill->lease, *item.room);
          item.prefill->lease.Reset();
          decode.core->SubmitDecode(item.request, *std::move(item.room), item.prefill->tokens, item.decode,
                                    decode.clock.Now());
          item.room.reset();
        }
        open += !item.decode || !item.decode->done();
      }
    }
    for (Item& item : items) {
      ASSERT_TRUE(item.decode->status.ok()) << item.decode->status;
      preemptions += item.decode->stats.num_preemptions;
      Answer both = item.prefill->answer;
      for (const auto& [choice, ids] : item.decode->answer.token_ids) {
        both.token_ids[choice].insert(both.token_ids[choice].end(), ids.begin(), ids.end());
      }
      for (const auto& [choice, logprobs] : item.decode->answer.logprobs) {
        both.logprobs[choice].insert(both.logprobs[choice].end(), logprobs.begin(), logprobs.end());
      }
      for (const auto& [choice, reason] : item.decode->answer.finish) both.finish[choice] = reason;
      ASSERT_EQ(both, RunAlone(item.request)) << item.request.request_id;
    }
    prefill.ExpectAllFree();
    decode.ExpectAllFree();
  }
  EXPECT_GT(handed_over, 200);
  EXPECT_GT(preemptions, 20);
}

// Tokens of choices that each begin somewhere else.
class ResumedSink : public RequestSink {
 public:
  explicit ResumedSink(Answer known) : answer(std::move(known)) {}
  void OnToken(const SampledToken& token) override {
    auto& ids = answer.token_ids[token.choice_index];
    EXPECT_EQ(token.token_index, static_cast<int>(ids.size())) << "choice " << token.choice_index;
    ids.push_back(token.token_id);
    if (token.finish_reason != FinishReason::kNone) answer.finish[token.choice_index] = token.finish_reason;
  }
  void OnDone(const absl::Status& s, const RequestStats& st) override {
    done = true;
    status = s;
    preemptions = st.num_preemptions;
  }
  Answer answer;
  bool done = false;
  absl::Status status;
  int preemptions = 0;
};

// A worker died after any number of tokens, another one of each choice: whoever is given what the client has goes on
// with the tokens that the first one would have sent, with penalties, seeds and choices, in little memory.
TEST_P(EngineExactnessTest, ResumedAnywhereGivesTheSameAnswer) {
  int resumed = 0, preemptions = 0, finished_choices = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 rng(seed);
    TestEngine prefill = NewEngine(RandomOptions(rng), seed);
    TestEngine decode = NewEngine(RandomOptions(rng), seed + 1);
    struct Item {
      Request request;
      Answer whole;
      std::vector<SampledToken> first;
      std::shared_ptr<RecordingSink> prefill;
      std::shared_ptr<ResumedSink> decode;
      std::optional<kvcache::BlockLease> room;
    };
    std::vector<Item> items(8);
    for (size_t i = 0; i < items.size(); ++i) {
      Item& item = items[i];
      item.request = RandomRequest(rng, "r" + std::to_string(i), 101, 40, 24, 4);
      item.whole = RunAlone(item.request);
      item.prefill = prefill.Submit(item.request, Mode::kPrefill);
      decode.core->Reserve(item.request.request_id, static_cast<int>(item.request.prompt_token_ids.size()),
                           absl::InfiniteFuture(),
                           [&item](absl::StatusOr<kvcache::BlockLease> lease) { item.room = *std::move(lease); });
    }
    size_t open = items.size();
    for (int step = 0; open > 0; ++step) {
      ASSERT_LT(step, 100000) << "does not end";
      prefill.Step();
      decode.Step();
      open = 0;
      for (Item& item : items) {
        if (item.prefill->done() && item.room.has_value() && !item.decode) {
          Answer known;
          item.first = item.prefill->tokens;
          item.request.resume.resize(item.first.size());
          bool any_open = false;
          for (SampledToken& token : item.first) {
            const std::vector<int32_t>& ids = item.whole.token_ids.at(token.choice_index);
            const size_t have = rng() % (ids.size() + 1);
            auto& resume = item.request.resume[token.choice_index];
            resume.assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(have));
            known.token_ids[token.choice_index] = resume;
            if (have == 0) known.token_ids[token.choice_index] = {token.token_id};
            if (have == ids.size() || token.finish_reason != FinishReason::kNone) {
              known.token_ids[token.choice_index] = ids;
              known.finish[token.choice_index] = item.whole.finish.at(token.choice_index);
              token.finish_reason = FinishReason::kStop;
              ++finished_choices;
            } else {
              any_open = true;
            }
          }
          item.decode = std::make_shared<ResumedSink>(known);
          if (!any_open) {
            item.decode->OnDone(absl::OkStatus(), {});
          } else {
            ++resumed;
            CopyBlocks(item.prefill->lease, *item.room);
            decode.core->SubmitDecode(item.request, *std::move(item.room), item.first, item.decode, decode.clock.Now());
          }
          item.prefill->lease.Reset();
          item.room.reset();
        }
        open += !item.decode || !item.decode->done;
      }
    }
    for (Item& item : items) {
      ASSERT_TRUE(item.decode->status.ok()) << item.decode->status;
      preemptions += item.decode->preemptions;
      ASSERT_EQ(item.decode->answer.token_ids, item.whole.token_ids) << "seed " << seed << " " << item.request.request_id;
      ASSERT_EQ(item.decode->answer.finish, item.whole.finish);
    }
    prefill.ExpectAllFree();
    decode.ExpectAllFree();
  }
  EXPECT_GT(resumed, 200);
  EXPECT_GT(finished_choices, 50);
  EXPECT_GT(preemptions, 20);
}

TEST_P(EngineExactnessTest, ResumingWhatCannotBeIsSaid) {
  TestEngine engine(Roomy());
  Request request;
  request.request_id = "r";
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  const Answer whole = RunAlone(request);
  const auto resume = [&](std::vector<std::vector<int32_t>> tokens) {
    kvcache::BlockLease room;
    engine.core->Reserve("x", 3, absl::InfiniteFuture(), [&](auto lease) { room = *std::move(lease); });
    engine.Step();
    request.resume = std::move(tokens);
    auto sink = std::make_shared<ResumedSink>(Answer{});
    SampledToken first;
    first.token_id = whole.token_ids.at(0)[0];
    engine.core->SubmitDecode(request, std::move(room), {first}, sink, engine.clock.Now());
    return sink->status;
  };
  const std::vector<int32_t>& ids = whole.token_ids.at(0);
  EXPECT_EQ(resume({{ids[0]}, {ids[0]}}).code(), absl::StatusCode::kInvalidArgument) << "one choice, two lists";
  EXPECT_EQ(resume({ids}).code(), absl::StatusCode::kInvalidArgument) << "nothing is left to do";
  EXPECT_EQ(resume({{ids[0], 101}}).code(), absl::StatusCode::kInvalidArgument) << "no such token";
  EXPECT_EQ(resume({{ids[0] + 1, ids[1]}}).code(), absl::StatusCode::kInternal) << "not what prefill computed";
  engine.ExpectAllFree();
}

// The oracle notices: one changed bit in a handed-over block changes the answer.
TEST_P(EngineExactnessTest, CorruptedBlockShows) {
  std::mt19937_64 rng(7);
  Request request = RandomRequest(rng, "r", 101, 40, 24, 1);
  request.sampling = SamplingParams{};
  request.sampling.max_tokens = 24;
  request.sampling.ignore_eos = true;
  TestEngine prefill = NewEngine(Roomy(), 1);
  TestEngine decode = NewEngine(Roomy(), 2);
  auto first = prefill.Submit(request, Mode::kPrefill);
  prefill.RunDry();
  kvcache::BlockLease room;
  decode.core->Reserve("r", static_cast<int>(request.prompt_token_ids.size()), absl::InfiniteFuture(),
                       [&](absl::StatusOr<kvcache::BlockLease> lease) { room = *std::move(lease); });
  decode.Step();
  CopyBlocks(first->lease, room);
  room.bytes(0)[3] ^= std::byte{1};
  auto second = std::make_shared<RecordingSink>(1);
  decode.core->SubmitDecode(request, std::move(room), first->tokens, second, decode.clock.Now());
  decode.RunDry();
  const Answer alone = RunAlone(request);
  std::vector<int32_t> ids = first->answer.token_ids[0];
  ids.insert(ids.end(), second->answer.token_ids[0].begin(), second->answer.token_ids[0].end());
  EXPECT_NE(ids, alone.token_ids.at(0));
}

TEST_P(EngineExactnessTest, ChoiceDoesNotDependOnN) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 20; ++round) {
    Request request = RandomRequest(rng, "r", 101, 30, 20, 1);
    request.sampling.temperature = 1.0f;
    request.sampling.n = 5;
    const Answer five = RunAlone(request);
    ASSERT_EQ(five.token_ids.size(), 5u);
    request.sampling.n = 2;
    const Answer two = RunAlone(request);
    for (int choice = 0; choice < 2; ++choice) {
      EXPECT_EQ(two.token_ids.at(choice), five.token_ids.at(choice));
    }
  }
}

// A worker that computes prompts goes on where another one died: with the tokens that the client has.
TEST_P(EngineExactnessTest, SubmitGoesOnBehindWhatTheClientHas) {
  std::mt19937_64 rng(77);
  for (int i = 0; i < 60; ++i) {
    Request request = RandomRequest(rng, "r", 101, 30, 20, 3);
    const Answer whole = RunAlone(request);
    Request again = request;
    Answer want = whole;
    bool any_open = false;
    again.resume.resize(request.sampling.n);
    for (int c = 0; c < request.sampling.n; ++c) {
      const std::vector<int32_t>& ids = whole.token_ids.at(c);
      const size_t had = rng() % (ids.size() + 1);
      if (had == ids.size()) {
        again.ended_choices.push_back(c);  // only token 0 comes once more
        want.token_ids[c].resize(1);
        if (ids.size() > 1) want.finish.erase(c);
        continue;
      }
      any_open = true;
      again.resume[c].assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(had));
      if (had > 1) want.token_ids[c].erase(want.token_ids[c].begin() + 1, want.token_ids[c].begin() + static_cast<ptrdiff_t>(had));
    }
    if (!any_open) continue;
    TestEngine engine = NewEngine(Roomy(), static_cast<uint64_t>(i));
    struct Sink : RequestSink {
      void OnToken(const SampledToken& token) override {
        answer.token_ids[token.choice_index].push_back(token.token_id);
        if (token.finish_reason != FinishReason::kNone) answer.finish[token.choice_index] = token.finish_reason;
        if (prefilled == 0) {
          EXPECT_EQ(token.token_index, 0);
        }
      }
      void OnPrefilled(const RequestStats& so_far) override {
        ++prefilled;
        EXPECT_GT(so_far.prompt_tokens, 0);
      }
      void OnDone(const absl::Status& s, const RequestStats&) override { status = s; }
      Answer answer;
      int prefilled = 0;
      absl::Status status = absl::UnknownError("not done");
    };
    auto sink = std::make_shared<Sink>();
    engine.core->Submit(again, Mode::kComplete, sink, engine.clock.Now());
    engine.RunDry();
    EXPECT_TRUE(sink->status.ok()) << sink->status;
    EXPECT_EQ(sink->prefilled, 1);
    EXPECT_EQ(sink->answer.token_ids, want.token_ids) << i;
    EXPECT_EQ(sink->answer.finish, want.finish) << i;
    engine.ExpectAllFree();
  }
}

TEST_P(EngineExactnessTest, SubmitRefusesToGoOnBehindAnotherFirstToken) {
  std::mt19937_64 rng(78);
  Request request = RandomRequest(rng, "r", 101, 30, 20, 1);
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids.clear();
  const int32_t first = RunAlone(request).token_ids.at(0)[0];
  request.resume = {{(first + 1) % 101}};
  TestEngine engine(Roomy());
  auto sink = engine.Submit(request);
  engine.RunDry();
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kInternal) << sink->status;
  engine.ExpectAllFree();
}

}  // namespace
}  // namespace baton::engine
