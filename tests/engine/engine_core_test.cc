#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

Request Simple(const std::string& id, int prompt, int max_tokens) {
  Request request;
  request.request_id = id;
  for (int i = 0; i < prompt; ++i) request.prompt_token_ids.push_back((i * 13 + 1) % 101);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 11;
  return request;
}

TEST(EngineCoreTest, BadInputIsATypedErrorThatSaysTheNumbers) {
  EngineOptions options = Roomy();
  options.num_blocks = 10;  // 40 positions
  TestEngine engine(options);
  const auto status = [&](const Request& request, Mode mode = Mode::kComplete) {
    auto sink = engine.Submit(request, mode);
    EXPECT_TRUE(sink->done());
    return sink->status;
  };
  EXPECT_EQ(status(Simple("r", 0, 5)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(Simple("r", 5, 0)).code(), absl::StatusCode::kInvalidArgument);
  Request request = Simple("r", 5, 5);
  request.prompt_token_ids[3] = 101;
  EXPECT_EQ(status(request).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status(request).message().find("101"), absl::string_view::npos);
  request.prompt_token_ids[3] = -1;
  EXPECT_EQ(status(request).code(), absl::StatusCode::kInvalidArgument);
  request = Simple("r", 5, 5);
  request.sampling.n = 1000000000;
  EXPECT_EQ(status(request).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status too_long = status(Simple("r", 600, 5));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.message().find("600"), absl::string_view::npos);
  EXPECT_NE(too_long.message().find("511"), absl::string_view::npos);
  // 20 + 22 - 1 positions are 11 blocks.
  const absl::Status too_big = status(Simple("r", 20, 22));
  EXPECT_EQ(too_big.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_big.message().find("11 blocks"), absl::string_view::npos) << too_big;
  EXPECT_NE(too_big.message().find("has 10"), absl::string_view::npos) << too_big;
  EXPECT_EQ(status(Simple("r", 41, 1), Mode::kPrefill).code(), absl::StatusCode::kResourceExhausted);
  // What just fits runs.
  auto fits = engine.Submit(Simple("r", 20, 21));
  engine.RunDry();
  EXPECT_TRUE(fits->status.ok()) << fits->status;
  EXPECT_EQ(fits->answer.token_ids[0].size(), 21u);
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, HugeMaxTokensDoesNotOverflow) {
  EngineOptions options = Roomy();
  TestEngine engine(options);
  auto sink = engine.Submit(Simple("r", 20, INT32_MAX));
  engine.RunDry();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->answer.token_ids[0].size(), 512u - 20);  // the context
  EXPECT_EQ(sink->answer.finish[0], FinishReason::kLength);
}

TEST(EngineCoreTest, DuplicateIdIsRefusedAndTheFirstGoesOn) {
  TestEngine engine(Roomy());
  auto first = engine.Submit(Simple("same", 5, 5));
  auto second = engine.Submit(Simple("same", 9, 5));
  EXPECT_EQ(second->status.code(), absl::StatusCode::kAlreadyExists);
  engine.RunDry();
  EXPECT_TRUE(first->status.ok());
  EXPECT_EQ(first->answer, RunAlone(Simple("same", 5, 5)));
}

TEST(EngineCoreTest, QueueIsBounded) {
  EngineOptions options = Roomy();
  options.max_queue = 3;
  TestEngine engine(options);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(engine.Submit(Simple("r" + std::to_string(i), 5, 5)));
  EXPECT_FALSE(sinks[2]->done());
  EXPECT_EQ(sinks[3]->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sinks[4]->status.code(), absl::StatusCode::kResourceExhausted);
  engine.RunDry();
  EXPECT_TRUE(sinks[2]->status.ok());
}

TEST(EngineCoreTest, ExactTokenCounts) {
  for (int max_tokens : {1, 2, 3, 17}) {
    TestEngine engine(Roomy());
    Request request = Simple("r", 10, max_tokens);
    request.sampling.n = 3;
    auto sink = engine.Submit(request);
    engine.RunDry();
    for (int choice = 0; choice < 3; ++choice) {
      EXPECT_EQ(static_cast<int>(sink->answer.token_ids[choice].size()), max_tokens);
      EXPECT_EQ(sink->answer.finish[choice], FinishReason::kLength);
    }
    EXPECT_EQ(engine.model->num_steps(), max_tokens);  // the first token comes with the prompt
    EXPECT_EQ(sink->stats.num_steps, max_tokens - 1);
    EXPECT_EQ(sink->stats.num_chunks, 1);
    engine.ExpectAllFree();
  }
}

TEST(EngineCoreTest, PrefillThatEndsWithTokenZeroLeasesNothing) {
  TestEngine engine(Roomy());
  auto sink = engine.Submit(Simple("r", 10, 1), Mode::kPrefill);
  engine.RunDry();
  EXPECT_TRUE(sink->status.ok());
  EXPECT_EQ(sink->answer.token_ids[0].size(), 1u);
  EXPECT_TRUE(sink->lease.empty());
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, PrefilledBlocksAreLeasedAndStayInThePrefixIndex) {
  TestEngine engine(Roomy());
  auto sink = engine.Submit(Simple("r", 10, 5), Mode::kPrefill);
  engine.RunDry();
  EXPECT_EQ(sink->lease.blocks().size(), 3u);  // 10 positions in blocks of 4
  EXPECT_EQ(engine.core->pool()->ledger().leased, 3);
  auto again = engine.Submit(Simple("s", 10, 5), Mode::kPrefill);
  engine.RunDry();
  EXPECT_EQ(again->stats.cached_tokens, 8);
  EXPECT_EQ(again->answer.token_ids, sink->answer.token_ids);
  again->lease.Reset();
  sink->lease.Reset();
  EXPECT_EQ(engine.core->pool()->ledger().cached, 2);
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, ChoicesShareThePromptsBlocks) {
  TestEngine engine(Roomy());
  Request request = Simple("r", 41, 3);  // 10 full blocks and one position
  request.sampling.n = 4;
  auto sink = engine.Submit(request);
  engine.Step();
  EXPECT_EQ(engine.core->pool()->ledger().active, 10 + 4);
  EXPECT_EQ(engine.model->num_rows(), 41);  // one prefill
  engine.RunDry();
  EXPECT_EQ(sink->answer.token_ids.size(), 4u);
  EXPECT_NE(sink->answer.token_ids[0], sink->answer.token_ids[1]);
}

TEST(EngineCoreTest, CancelAndDeadlineEndWithinOneStepAndFree) {
  EngineOptions options = Roomy();
  options.max_batch_tokens = 8;
  options.prefix_cache = false;
  TestEngine engine(options);
  Request request = Simple("late", 30, 50);
  request.deadline = engine.clock.Now() + absl::Seconds(10);
  request.sampling.n = 2;
  auto late = engine.Submit(request);
  auto cancelled = engine.Submit(Simple("gone", 30, 50));
  for (int i = 0; i < 12; ++i) engine.Step();
  EXPECT_FALSE(late->answer.token_ids.empty());
  engine.core->Cancel("unknown");
  engine.core->Cancel("gone");
  EXPECT_EQ(cancelled->status.code(), absl::StatusCode::kCancelled);
  engine.clock.Advance(absl::Seconds(10));
  const int64_t steps = engine.model->num_steps();
  engine.Step();
  EXPECT_EQ(late->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine.model->num_steps(), steps) << "worked after the deadline";
  EXPECT_TRUE(engine.core->Quiet());
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, NonFiniteLogitsEndOnlyTheirRequest) {
  fakes::HashModel::Options model;
  model.nan_position = 14;
  TestEngine engine(Roomy(), model);
  auto bad = engine.Submit(Simple("bad", 10, 20));
  Request many = Simple("many", 15, 20);
  many.sampling.n = 3;
  auto bad_at_first = engine.Submit(many);
  auto good = engine.Submit(Simple("good", 5, 5));
  auto prefill = engine.Submit(Simple("prefill", 15, 20), Mode::kPrefill);
  engine.RunDry();
  EXPECT_EQ(bad->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(bad->answer.token_ids[0].size(), 5u);
  EXPECT_EQ(bad_at_first->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(prefill->status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(prefill->lease.empty());
  EXPECT_TRUE(good->status.ok());
  EXPECT_EQ(good->answer, RunAlone(Simple("good", 5, 5)));
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, ReservationsAreRefusedExpiredCancelledOrGranted) {
  EngineOptions options = Roomy();
  options.num_blocks = 10;
  TestEngine engine(options);
  std::map<std::string, absl::StatusOr<kvcache::BlockLease>> results;
  const auto reserve = [&](const std::string& id, int tokens, absl::Time deadline = absl::InfiniteFuture()) {
    engine.core->Reserve(id, tokens, deadline, [&results, id](absl::StatusOr<kvcache::BlockLease> lease) {
      EXPECT_FALSE(results.contains(id)) << "called back twice";
      results.emplace(id, std::move(lease));
    });
  };
  reserve("never", 41);
  EXPECT_EQ(results.at("never").status().code(), absl::StatusCode::kResourceExhausted);
  reserve("nothing", 0);
  EXPECT_EQ(results.at("nothing").status().code(), absl::StatusCode::kInvalidArgument);
  reserve("first", 24);
  reserve("second", 20, engine.clock.Now() + absl::Seconds(1));
  reserve("third", 20);
  reserve("fourth", 20);
  engine.Step();
  ASSERT_TRUE(results.at("first").ok());
  EXPECT_EQ(results.at("first")->blocks().size(), 6u);
  EXPECT_FALSE(results.contains("second"));
  EXPECT_FALSE(engine.Step()) << "busy while nothing can be done";
  engine.core->Cancel("third");
  EXPECT_EQ(results.at("third").status().code(), absl::StatusCode::kCancelled);
  engine.clock.Advance(absl::Seconds(1));
  engine.Step();
  EXPECT_EQ(results.at("second").status().code(), absl::StatusCode::kDeadlineExceeded);
  results.at("first")->Reset();
  engine.Step();
  EXPECT_TRUE(results.at("fourth").ok());
  engine.core->Drain();
  reserve("drained", 4);
  EXPECT_EQ(results.at("drained").status().code(), absl::StatusCode::kUnavailable);
  results.clear();
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, ReservationIsNotStarvedByAStreamOfSmallRequests) {
  EngineOptions options = Roomy();
  options.num_blocks = 12;
  options.prefix_cache = false;
  TestEngine engine(options);
  int submitted = 0;
  const auto small = [&] { engine.Submit(Simple("s" + std::to_string(submitted++), 4, 8)); };
  for (int i = 0; i < 4; ++i) small();
  engine.Step();
  bool granted = false;
  engine.core->Reserve("big", 48, absl::InfiniteFuture(), [&](auto lease) { granted = lease.ok(); });
  for (int step = 0; step < 100 && !granted; ++step) {
    small();
    engine.Step();
  }
  EXPECT_TRUE(granted);
  engine.RunDry();
}

TEST(EngineCoreTest, ImportsAreChecked) {
  TestEngine engine(Roomy());
  TestEngine other(Roomy());
  const Request request = Simple("r", 10, 5);
  const auto room = [](TestEngine& e, int tokens) {
    kvcache::BlockLease lease;
    e.core->Reserve("x", tokens, absl::InfiniteFuture(), [&](auto result) { lease = *std::move(result); });
    e.Step();
    return lease;
  };
  const auto submit = [&](kvcache::BlockLease lease, std::vector<SampledToken> first) {
    auto sink = std::make_shared<RecordingSink>(1);
    engine.core->SubmitDecode(request, std::move(lease), std::move(first), sink, engine.clock.Now());
    return sink;
  };
  SampledToken first;
  first.token_id = 3;
  EXPECT_EQ(submit(room(other, 10), {first})->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit(room(engine, 8), {first})->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit(room(engine, 10), {})->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit({}, {first})->status.code(), absl::StatusCode::kInvalidArgument);
  first.token_id = 101;
  EXPECT_EQ(submit(room(engine, 10), {first})->status.code(), absl::StatusCode::kInvalidArgument);
  first.token_id = 3;
  first.token_index = 1;
  EXPECT_EQ(submit(room(engine, 10), {first})->status.code(), absl::StatusCode::kInvalidArgument);
  // Nothing left to do: no step is spent.
  first.token_index = 0;
  first.finish_reason = FinishReason::kStop;
  const auto finished = submit(room(engine, 10), {first});
  EXPECT_TRUE(finished->done());
  EXPECT_TRUE(finished->status.ok());
  EXPECT_EQ(engine.model->num_steps(), 0);
  engine.ExpectAllFree();
}

TEST(EngineCoreTest, DrainRefusesNewWorkAndFinishesTheOld) {
  TestEngine engine(Roomy());
  auto old = engine.Submit(Simple("old", 10, 10));
  engine.Step();
  engine.core->Drain();
  EXPECT_EQ(engine.Submit(Simple("new", 5, 5))->status.code(), absl::StatusCode::kUnavailable);
  engine.RunDry();
  EXPECT_TRUE(old->status.ok());
}

TEST(EngineCoreTest, OpenWorkIsCancelledAtTheEnd) {
  std::shared_ptr<RecordingSink> sink;
  absl::Status reservation;
  {
    EngineOptions options = Roomy();
    options.num_blocks = 8;
    TestEngine engine(options);
    sink = engine.Submit(Simple("r", 10, 10));
    engine.Step();
    engine.core->Reserve("x", 32, absl::InfiniteFuture(), [&](auto lease) { reservation = lease.status(); });
  }
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(reservation.code(), absl::StatusCode::kCancelled);
}

TEST(EngineCoreTest, OptionsAreChecked) {
  fakes::HashModel model({});
  EngineOptions options = Roomy();
  options.num_blocks = 0;
  EXPECT_EQ(EngineCore::Create(options, &model, Clock::Real()).status().code(), absl::StatusCode::kInvalidArgument);
  options = Roomy();
  options.max_batch_tokens = 0;
  EXPECT_EQ(EngineCore::Create(options, &model, Clock::Real()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineCoreTest, DeadlineIsAlsoKeptInTheQueue) {
  EngineOptions options = Roomy();
  options.num_blocks = 8;
  TestEngine engine(options);
  auto running = engine.Submit(Simple("long", 16, 16));
  Request request = Simple("queued", 16, 16);
  request.deadline = engine.clock.Now() + absl::Seconds(1);
  auto queued = engine.Submit(request);
  engine.Step();
  EXPECT_EQ(engine.core->NextDeadline(), request.deadline);
  engine.clock.Advance(absl::Seconds(2));
  engine.Step();
  EXPECT_EQ(queued->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(queued->answer.token_ids.empty());
  engine.RunDry();
  EXPECT_TRUE(running->status.ok());
}

// Steps take what small chunks really take: more a row than large ones, and not always the same.
class SlowModel : public fakes::HashModel {
 public:
  SlowModel(const Options& options, SimulatedClock* clock) : HashModel(options), clock_(clock) {}
  void Forward(const model::ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) override {
    HashModel::Forward(batch, kv, logits);
    const double rows = static_cast<double>(batch.token_ids.size());
    const double noise = (0.9 + 0.2 * static_cast<double>(rng_() % 1000) / 1000) * (rng_() % 15 == 0 ? 1.6 : 1);
    last = absl::Milliseconds(noise * (3 + 0.2 * rows + (rows > 1 ? 4 : 0) + 0.5 * std::sqrt(rows)));
    clock_->Advance(last);
  }
  absl::Duration last;

 private:
  SimulatedClock* const clock_;
  std::mt19937_64 rng_{1};
};

TEST(EngineCoreTest, StepsThatDecodeKeepThePromisedTimeBetweenTokensWhilePromptsComeIn) {
  SimulatedClock clock;
  EngineOptions options = Roomy();
  options.prefix_cache = false;
  options.step_target = absl::Milliseconds(30);
  SlowModel model({.max_context = 4096, .num_blocks = options.num_blocks}, &clock);
  auto core = EngineCore::Create(options, &model, &clock);
  ASSERT_TRUE(core.ok()) << core.status();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const auto submit = [&](int prompt, int output) {
    sinks.push_back(std::make_shared<RecordingSink>());
    (*core)->Submit(Simple(absl::StrCat("r", sinks.size()), prompt, output), Mode::kComplete, sinks.back(), clock.Now());
  };
  submit(8, 1500);
  int mixed = 0, late = 0, steps = 0;
  int64_t mixed_rows = 0;
  while (!sinks[0]->done()) {
    if (steps++ % 12 == 0) submit(300, 4);
    const int64_t rows = model.num_rows();
    ASSERT_TRUE((*core)->Step());
    if (model.num_rows() - rows < 8 || sinks[0]->tokens.empty()) continue;
    ++mixed;
    mixed_rows += model.num_rows() - rows;
    late += model.last > options.step_target;
  }
  ASSERT_GT(mixed, 300);
  EXPECT_LE(late, mixed / 25) << "of " << mixed;
  EXPECT_GT(mixed_rows / mixed, 30) << "a step of 30 ms has room for some 90 rows";
  for (int i = 0; i < 10000 && !(*core)->Quiet(); ++i) (*core)->Step();
}

}  // namespace
}  // namespace baton::engine
