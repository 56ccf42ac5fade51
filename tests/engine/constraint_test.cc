// Constrained requests in the engine: what they write satisfies the constraint, and is the same alone, in company, after
// preemptions and when they are resumed at any token.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "constraint/compile.h"
#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

using Json = nlohmann::ordered_json;

// Ids of the hash model as text: 5 and 17 are EOS, 100 is another special token.
const std::vector<std::string>& Tokens() {
  static const auto* const kTokens = [] {
    auto* tokens = new std::vector<std::string>(101);
    size_t id = 0;
    const auto add = [&](const std::string& text) {
      if (id == 5 || id == 17) ++id;
      tokens->at(id++) = text;
    };
    for (char c = ' '; c <= '~'; ++c) {
      if (c < 'A' || c > 'Z') add(std::string(1, c));
    }
    for (const char* text : {"{\"", "\":", "true", "\",\"", "\"}", "12", "ab", "\n", "name"}) add(text);
    return tokens;
  }();
  return *kTokens;
}

std::shared_ptr<constraint::TokenConstraint> Constraint(const std::string& schema) {
  static auto* const kCompiler = [] {
    auto vocabulary = constraint::Vocabulary::Create(101, [](int32_t id) { return absl::string_view(Tokens()[static_cast<size_t>(id)]); });
    EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
    return new constraint::ConstraintCompiler(*vocabulary, true);
  }();
  v1::SamplingParams sampling;
  sampling.mutable_constraint()->set_json_schema(schema);
  auto made = kCompiler->ForRequest(sampling);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

std::string Text(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += Tokens()[static_cast<size_t>(id)];
  return text;
}

constexpr char kPerson[] =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer","minimum":1,"maximum":120}},"required":["name","age"]})";
constexpr char kList[] = R"({"type":"array","items":{"enum":["a","ab","b"]},"maxItems":6})";

Request ConstrainedRequest(std::mt19937_64& rng, const std::string& id) {
  Request request = RandomRequest(rng, id, 101, 40, 60, 3);
  request.sampling.ignore_eos = false;
  request.sampling.stop_token_ids.clear();
  request.sampling.max_tokens = 80;
  request.constraint = Constraint(rng() % 2 == 0 ? kPerson : kList);
  return request;
}

void ExpectSatisfied(const Answer& answer) {
  for (const auto& [choice, ids] : answer.token_ids) {
    const std::string text = Text(ids);
    ASSERT_EQ(answer.finish.at(choice), FinishReason::kStop) << text;
    const Json value = Json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object() || value.is_array()) << text;
    if (value.is_object()) {
      ASSERT_EQ(value.size(), 2u) << text;
      ASSERT_TRUE(value["name"].is_string() && value["name"].get<std::string>().size() <= 8) << text;
      ASSERT_TRUE(value["age"].is_number_integer() && value["age"] >= 1 && value["age"] <= 120) << text;
    }
    ASSERT_TRUE(ids.back() == 5 || ids.back() == 17);
  }
}

TEST(EngineConstraintTest, CompanyMemoryAndPreemptionDoNotShow) {
  int preemptions = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 rng(seed);
    EngineOptions options = Roomy();
    options.num_blocks = 32;
    options.max_batch_tokens = 16;
    TestEngine engine(options);
    std::vector<Request> requests;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 9; ++i) {
      const std::string id = "r" + std::to_string(i);
      requests.push_back(i % 3 == 2 ? RandomRequest(rng, id, 101, 40, 24, 2) : ConstrainedRequest(rng, id));
      sinks.push_back(engine.Submit(requests.back()));
    }
    engine.RunDry();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(sinks[i]->status.ok()) << sinks[i]->status;
      ASSERT_EQ(sinks[i]->answer, RunAlone(requests[i])) << "seed " << seed << ", request " << i;
      if (requests[i].constraint != nullptr) ExpectSatisfied(sinks[i]->answer);
      if (requests[i].constraint != nullptr) preemptions += sinks[i]->stats.num_preemptions;
    }
    engine.ExpectAllFree();
  }
  EXPECT_GT(preemptions, 5);
}

// Another worker has nothing but the tokens.
TEST(EngineConstraintTest, ResumedAnywhereGivesTheSameAnswer) {
  std::mt19937_64 rng(4);
  int resumed = 0;
  for (int i = 0; i < 20; ++i) {
    Request request = ConstrainedRequest(rng, "r");
    request.sampling.n = 1;
    const std::vector<int32_t> whole = RunAlone(request).token_ids.at(0);
    for (size_t have = 1; have < whole.size(); have += 1 + rng() % 4) {
      Request again = request;
      again.resume = {{whole.begin(), whole.begin() + static_cast<ptrdiff_t>(have)}};
      TestEngine engine(Roomy());
      struct Sink : RequestSink {
        std::map<int, int32_t> tokens;
        absl::Status status = absl::UnknownError("not done");
        void OnToken(const SampledToken& token) override { tokens[token.token_index] = token.token_id; }
        void OnDone(const absl::Status& s, const RequestStats&) override { status = s; }
      };
      auto sink = std::make_shared<Sink>();
      engine.core->Submit(again, Mode::kComplete, sink, engine.clock.Now());
      engine.RunDry();
      ASSERT_TRUE(sink->status.ok()) << sink->status;
      for (size_t t = have; t < whole.size(); ++t) ASSERT_EQ(sink->tokens[static_cast<int>(t)], whole[t]) << Text(whole);
      ++resumed;
    }
  }
  EXPECT_GT(resumed, 50);
}

TEST(EngineConstraintTest, WhatDoesNotFitIsSaidAndEndsOnlyItsRequest) {
  Request request;
  request.request_id = "r";
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.max_tokens = 20;
  request.constraint = Constraint(kPerson);
  const std::vector<int32_t> whole = RunAlone(request).token_ids.at(0);
  TestEngine engine(Roomy());
  Request other = request;
  other.request_id = "other";
  const auto fine = engine.Submit(other);
  request.resume = {{whole[0], 100}};  // a special token
  const auto sink = engine.Submit(request);
  engine.RunDry();
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kInvalidArgument) << sink->status;
  EXPECT_EQ(fine->answer.token_ids.at(0), whole);
  engine.ExpectAllFree();
}

TEST(EngineConstraintTest, LengthsAreKept) {
  Request request;
  request.request_id = "r";
  request.prompt_token_ids = {1, 2, 3};
  request.constraint = Constraint(kPerson);
  // Cut off in the middle: that is LENGTH as ever.
  request.sampling.max_tokens = 3;
  EXPECT_EQ(RunAlone(request).finish.at(0), FinishReason::kLength);
  // Text that is complete ends, however many tokens were asked for at least.
  request.sampling.max_tokens = 100;
  request.sampling.min_tokens = 90;
  const Answer answer = RunAlone(request);
  ExpectSatisfied(answer);
  EXPECT_LT(answer.token_ids.at(0).size(), 90u);
}

}  // namespace
}  // namespace baton::engine
