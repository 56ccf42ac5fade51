#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "common/philox.h"
#include "engine/stopping.h"

namespace baton::engine {
namespace {

std::vector<float> LogOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SampleContext Context(const SamplingParams& params, const TokenHistory* history = nullptr) {
  SampleContext context;
  context.params = &params;
  context.history = history;
  return context;
}

std::vector<double> Distribution(const std::vector<float>& logits, const SamplingParams& params,
                                 const TokenHistory* history = nullptr) {
  Sampler sampler(static_cast<int>(logits.size()));
  auto result = sampler.Distribution(logits, Context(params, history));
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

int32_t Pick(const std::vector<float>& logits, const SampleContext& context) {
  Sampler sampler(static_cast<int>(logits.size()));
  auto token = sampler.Sample(logits, context);
  EXPECT_TRUE(token.ok()) << token.status();
  return token->token_id;
}

TEST(SamplerTest, ExponentialIsAccurate) {
  for (double x = 0; x > -699; x -= 0.0371) {
    ASSERT_NEAR(ExpNonPositive(x) / std::exp(x), 1.0, 1e-14) << x;
  }
  EXPECT_EQ(ExpNonPositive(0.0), 1.0);
  EXPECT_EQ(ExpNonPositive(-1e6), 0.0);
  EXPECT_EQ(ExpNonPositive(-std::numeric_limits<double>::infinity()), 0.0);
}

// The specification's table of temperatures, to the printed digit.
TEST(SamplerTest, Table6_2) {
  const std::vector<double> original = {0.50, 0.22, 0.12, 0.08, 0.05, 0.03};
  const struct {
    float temperature;
    std::vector<std::string> printed;
  } columns[] = {
      {0.2f, {"98.3%", "1.6%", "0.1%", "0.0%", "0.0%", "0.0%"}},
      {0.5f, {"77.5%", "15.0%", "4.5%", "2.0%", "0.8%", "0.3%"}},
      {1.0f, {"50.0%", "22.0%", "12.0%", "8.0%", "5.0%", "3.0%"}},
      {1.5f, {"38.0%", "22.0%", "14.7%", "11.2%", "8.2%", "5.8%"}},
  };
  for (const auto& column : columns) {
    SamplingParams params;
    params.temperature = column.temperature;
    const std::vector<double> p = Distribution(LogOf(original), params);
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1.0, 1e-12);
    double total = 0;
    for (double q : original) total += std::pow(q, 1.0 / column.temperature);
    for (size_t i = 0; i < p.size(); ++i) {
      char text[16];
      std::snprintf(text, sizeof(text), "%.1f%%", 100 * p[i]);
      EXPECT_EQ(text, column.printed[i]) << "T " << column.temperature << " word " << i;
      EXPECT_NEAR(p[i], std::pow(original[i], 1.0 / column.temperature) / total, 1e-6);
    }
  }
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestIdOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Pick({1, 3, 2, 3}, Context(params)), 1);
  params.top_k = 1;
  params.top_p = 0.01f;
  EXPECT_EQ(Pick({1, 3, 2, 3}, Context(params)), 1);
}

TEST(SamplerTest, TopKKeepsExactlyKTiesByLowestId) {
  SamplingParams params;
  params.top_k = 2;
  const auto p = Distribution({1, 3, 3, 3}, params);
  EXPECT_EQ(p, (std::vector<double>{0, 0.5, 0.5, 0}));
  params.top_k = 100;
  EXPECT_GT(Distribution({1, 3, 3, 3}, params)[0], 0);
}

TEST(SamplerTest, TopPKeepsTheShortestPrefixThatReachesP) {
  const auto logits = LogOf({0.2, 0.5, 0.3});
  SamplingParams params;
  params.top_p = 0.5f;
  // Rounding may put 0.5 on either side of p; just below and above it does not.
  params.top_p = 0.49f;
  EXPECT_EQ(Distribution(logits, params), (std::vector<double>{0, 1, 0}));
  params.top_p = 0.51f;
  auto p = Distribution(logits, params);
  EXPECT_EQ(p[0], 0);
  EXPECT_NEAR(p[1], 0.625, 1e-6);
  params.top_p = 0.81f;
  EXPECT_GT(Distribution(logits, params)[0], 0);
  params.top_p = 1e-9f;
  EXPECT_EQ(Distribution(logits, params), (std::vector<double>{0, 1, 0}));
}

TEST(SamplerTest, MinPIsRelativeToTheLargestAfterTemperature) {
  const auto logits = LogOf({0.6, 0.3, 0.1});
  SamplingParams params;
  params.min_p = 0.4f;
  auto p = Distribution(logits, params);
  EXPECT_NEAR(p[0], 2.0 / 3, 1e-6);
  EXPECT_EQ(p[2], 0);
  params.temperature = 0.5f;  // squared: 1 : 0.25
  EXPECT_NEAR(Distribution(logits, params)[0], 1.0, 1e-12);
  params.min_p = 1.0f;
  EXPECT_NEAR(Distribution(logits, params)[0], 1.0, 1e-12);
}

TEST(SamplerTest, FiltersApplyInTheDocumentedOrder) {
  // top_p counts the mass that top_k left: of {0.4, 0.3} 0.4 is 57 %.
  const auto logits = LogOf({0.4, 0.3, 0.2, 0.1});
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.55f;
  EXPECT_EQ(Distribution(logits, params), (std::vector<double>{1, 0, 0, 0}));
  params.top_k = 0;
  EXPECT_GT(Distribution(logits, params)[1], 0);
}

// The partial selection against a full sort, on vocabularies with many ties.
TEST(SamplerTest, PartialSelectionEqualsAFullSort) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const int vocab = 1 + static_cast<int>(rng() % 3000);
    std::vector<float> logits(vocab);
    const int levels = 1 + static_cast<int>(rng() % 500);
    for (float& l : logits) l = 0.02f * static_cast<float>(rng() % levels);
    SamplingParams params;
    params.temperature = 0.5f + 0.1f * static_cast<float>(rng() % 20);
    if (rng() % 2) params.top_k = 1 + static_cast<int>(rng() % vocab);
    if (rng() % 2) params.top_p = 0.01f * static_cast<float>(1 + rng() % 99);
    if (rng() % 3 == 0) params.min_p = 0.01f * static_cast<float>(rng() % 30);
    const auto got = Distribution(logits, params);

    std::vector<int> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
    const double max = logits[order[0]];
    std::vector<double> weight(vocab);
    for (int i = 0; i < vocab; ++i) weight[i] = ExpNonPositive((logits[i] - max) / double{params.temperature});
    std::vector<int> kept;
    for (int id : order) {
      if (weight[id] >= params.min_p) kept.push_back(id);
    }
    if (params.top_k > 0 && kept.size() > static_cast<size_t>(params.top_k)) kept.resize(params.top_k);
    std::vector<int> by_id = kept;
    std::ranges::sort(by_id);
    double total = 0;
    for (int id : by_id) total += weight[id];
    if (params.top_p < 1) {
      double mass = 0;
      size_t n = 0;
      while (n < kept.size() && mass < params.top_p * total) mass += weight[kept[n++]];
      kept.resize(n);
    }
    for (int id = 0; id < vocab; ++id) {
      ASSERT_EQ(got[id] > 0, std::ranges::count(kept, id) == 1) << "round " << round << " id " << id;
    }
  }
}

TEST(SamplerTest, PenaltiesFollowTheirFormulas) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2.0f;
  TokenHistory history;
  history.prompt = std::make_shared<const std::unordered_set<int32_t>>(std::unordered_set<int32_t>{0});
  history.output_counts = {{1, 2}};
  // Positive logits are divided, negative ones multiplied; prompt and output count alike, once.
  EXPECT_EQ(Pick({4.0f, 3.8f, 2.1f}, Context(params, &history)), 2);
  EXPECT_EQ(Pick({-1.0f, -1.2f, -1.9f}, Context(params, &history)), 2);
  params.repetition_penalty = 1.0f;
  params.frequency_penalty = 0.5f;  // 2 x 0.5
  EXPECT_EQ(Pick({0.0f, 3.1f, 2.0f}, Context(params, &history)), 1);
  EXPECT_EQ(Pick({0.0f, 2.9f, 2.0f}, Context(params, &history)), 2);
  params.frequency_penalty = 0;
  params.presence_penalty = 0.5f;  // once
  EXPECT_EQ(Pick({0.0f, 2.6f, 2.0f}, Context(params, &history)), 1);
  EXPECT_EQ(Pick({0.0f, 2.4f, 2.0f}, Context(params, &history)), 2);
  // Presence and frequency look at the output only.
  EXPECT_EQ(Pick({2.1f, 0.0f, 2.0f}, Context(params, &history)), 0);
}

TEST(SamplerTest, LogitBiasMovesTokensAndExtremesStayFinite) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{2, 5.0f}, {99, 100.0f}, {-1, 100.0f}};
  EXPECT_EQ(Pick({1, 3, 0}, Context(params)), 2);
  params.temperature = 1.0f;
  params.logit_bias = {{0, std::numeric_limits<float>::max()}, {1, std::numeric_limits<float>::max()}};
  const auto p = Distribution({3e38f, 3e38f, 0}, params);
  EXPECT_NEAR(p[0] + p[1], 1.0, 1e-12);
}

TEST(SamplerTest, MinTokensMasksWhatWouldStop) {
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 3;
  params.stop_token_ids = {1};
  const int32_t eos[] = {2};
  SampleContext context = Context(params);
  context.eos_token_ids = eos;
  for (int index = 0; index < 5; ++index) {
    context.token_index = index;
    EXPECT_EQ(Pick({1, 4, 5}, context), index < 3 ? 0 : 2);
  }
  // An ignored EOS stops nothing, so it is not masked.
  params.ignore_eos = true;
  context.token_index = 0;
  EXPECT_EQ(Pick({1, 4, 5}, context), 2);
  params.ignore_eos = false;
  params.stop_token_ids = {0, 1};
  Sampler sampler(3);
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, 4, 5}, context).status().code(), absl::StatusCode::kInternal);
}

TEST(SamplerTest, NonFiniteLogitsAreAnErrorNotACrash) {
  Sampler sampler(3);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (float temperature : {0.0f, 1.0f}) {
      SamplingParams params;
      params.temperature = temperature;
      const std::vector<float> logits = {1, bad, 2};
      EXPECT_EQ(sampler.Sample(logits, Context(params)).status().code(), absl::StatusCode::kInternal);
    }
  }
  SamplingParams params;
  EXPECT_TRUE(sampler.Sample(std::vector<float>{1, 0, 2}, Context(params)).ok());
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, 0}, Context(params)).ok());
}

TEST(SamplerTest, ExtremeTemperaturesAreSafe) {
  SamplingParams params;
  params.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Distribution({1, 3, 2}, params), (std::vector<double>{0, 1, 0}));
  params.temperature = std::numeric_limits<float>::max();
  for (double p : Distribution({1, 3, 2}, params)) EXPECT_NEAR(p, 1.0 / 3, 1e-9);
}

TEST(SamplerTest, LogprobsAreOfTheRawLogits) {
  SamplingParams params;
  params.temperature = 0.3f;
  params.top_k = 1;
  params.logit_bias = {{0, 50.0f}};
  params.logprobs = 2;
  Sampler sampler(4);
  const auto token = sampler.Sample(LogOf({0.1, 0.4, 0.4, 0.1}), Context(params));
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->token_id, 0);
  EXPECT_NEAR(token->logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(token->top_logprobs.size(), 2u);
  EXPECT_EQ(token->top_logprobs[0].token_id, 1);  // of equals the lower id first
  EXPECT_EQ(token->top_logprobs[1].token_id, 2);
  EXPECT_NEAR(token->top_logprobs[0].logprob, std::log(0.4), 1e-6);
  params.logprobs = 50;
  EXPECT_EQ(sampler.Sample(LogOf({0.1, 0.4, 0.4, 0.1}), Context(params))->top_logprobs.size(), 4u);
  params.logprobs = 0;
  EXPECT_TRUE(sampler.Sample(LogOf({0.1, 0.4, 0.4, 0.1}), Context(params))->top_logprobs.empty());
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<double> wanted = {0.05, 0.5, 0.15, 0.3};
  SamplingParams params;
  params.seed = 9;
  Sampler sampler(4);
  std::vector<int> counts(4);
  SampleContext context = Context(params);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) {
    context.position = i;
    ++counts[sampler.Sample(LogOf(wanted), context)->token_id];
  }
  double chi2 = 0;
  for (int i = 0; i < 4; ++i) chi2 += std::pow(counts[i] - kDraws * wanted[i], 2) / (kDraws * wanted[i]);
  EXPECT_LT(chi2, 16.3);  // 3 degrees of freedom, p = 0.001; the draws are fixed, so this never flickers
}

TEST(SamplerTest, DrawIsAFunctionOfSeedChoiceAndPosition) {
  const std::vector<float> logits(500, 0.0f);
  SamplingParams params;
  SampleContext context = Context(params);
  std::map<std::string, std::vector<int32_t>> runs;
  for (const std::string name : {"base", "again", "seed", "choice", "shifted"}) {
    params.seed = name == "seed" ? 8 : 7;
    context.choice_index = name == "choice" ? 1 : 0;
    for (int i = 0; i < 20; ++i) {
      context.position = i + (name == "shifted");
      const int32_t id = Pick(logits, context);
      runs[name].push_back(id);
      const double u = PhiloxUniform(params.seed, context.choice_index, static_cast<uint32_t>(context.position), 0);
      EXPECT_EQ(id, static_cast<int32_t>(u * 500));
    }
  }
  EXPECT_EQ(runs["base"], runs["again"]);
  EXPECT_NE(runs["base"], runs["seed"]);
  EXPECT_NE(runs["base"], runs["choice"]);
  EXPECT_EQ(std::vector(runs["base"].begin() + 1, runs["base"].end()),
            std::vector(runs["shifted"].begin(), runs["shifted"].end() - 1));
}

TEST(StoppingTest, ReasonsAndTheirOrder) {
  SamplingParams params;
  params.max_tokens = 3;
  params.stop_token_ids = {7};
  const int32_t eos[] = {2, 3};
  EXPECT_EQ(CheckStop(params, eos, 5, 1, 10, 100), FinishReason::kNone);
  EXPECT_EQ(CheckStop(params, eos, 3, 1, 10, 100), FinishReason::kStop);
  EXPECT_EQ(CheckStop(params, eos, 7, 1, 10, 100), FinishReason::kStop);
  EXPECT_EQ(CheckStop(params, eos, 5, 3, 10, 100), FinishReason::kLength);
  EXPECT_EQ(CheckStop(params, eos, 2, 3, 10, 100), FinishReason::kStop);
  EXPECT_EQ(CheckStop(params, eos, 5, 1, 100, 100), FinishReason::kLength);
  params.ignore_eos = true;
  EXPECT_EQ(CheckStop(params, eos, 2, 1, 10, 100), FinishReason::kNone);
  EXPECT_EQ(CheckStop(params, eos, 7, 1, 10, 100), FinishReason::kStop);
}

}  // namespace
}  // namespace baton::engine
