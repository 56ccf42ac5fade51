// Reads the goldens that tests/reference/logits_golden.py writes: JSON with, for each case, token_ids, the mean
// negative log-likelihood of tokens 1.. given those before, and some positions with log-probabilities of some next
// tokens.
#ifndef BATON_TESTS_MODEL_LOGITS_GOLDEN_H_
#define BATON_TESTS_MODEL_LOGITS_GOLDEN_H_

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/model/model_runner_util.h"

namespace baton::model {

struct GoldenCase {
  std::vector<int32_t> token_ids;
  double mean_nll = 0;
  // By position: next token's id and log-probability.
  std::map<int, std::vector<std::pair<int32_t, double>>> positions;
};

// Empty when the file cannot be read.
inline std::vector<GoldenCase> ReadGolden(const std::string& path) {
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::vector<GoldenCase> cases;
  if (json.is_discarded()) return cases;
  for (const auto& c : json["cases"]) {
    GoldenCase golden{.token_ids = c["token_ids"].get<std::vector<int32_t>>(), .mean_nll = c["mean_nll"].get<double>()};
    for (const auto& p : c["positions"]) {
      auto& entries = golden.positions[p["position"].get<int>()];
      for (size_t i = 0; i < p["ids"].size(); ++i) {
        entries.emplace_back(p["ids"][i].get<int32_t>(), p["logprobs"][i].get<double>());
      }
    }
    cases.push_back(std::move(golden));
  }
  return cases;
}

// log of the sum of exp of all logits.
inline double LogSumExp(std::span<const float> logits) {
  double max = -INFINITY;
  for (float l : logits) max = std::max(max, double{l});
  double sum = 0;
  for (float l : logits) sum += std::exp(l - max);
  return max + std::log(sum);
}

// Largest difference of log-probabilities over all golden entries of the case.
inline double MaxLogprobError(Transformer* model, const GoldenCase& golden, int chunk) {
  const kernels::KvLayout layout = model->KvLayoutFor(kernels::DType::kF32, 16);
  TestKvPool pool(layout, static_cast<int>(golden.token_ids.size()) / 16 + 2);
  double worst = 0;
  size_t seen = 0;
  Prefill(
      model, &pool, golden.token_ids, chunk, [&](int p) { return golden.positions.count(p) > 0; },
      [&](int p, std::span<const float> logits) {
        ++seen;
        const double norm = LogSumExp(logits);
        for (const auto& [id, logprob] : golden.positions.at(p)) {
          const double error = std::fabs(logits[static_cast<size_t>(id)] - norm - logprob);
          if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
      });
  return seen == golden.positions.size() ? worst : INFINITY;
}

// Mean negative log-likelihood of a text; perplexity is its exponential.
inline double MeanNll(Transformer* model, const std::vector<int32_t>& ids, kernels::DType kv_dtype, int chunk) {
  const kernels::KvLayout layout = model->KvLayoutFor(kv_dtype, 16);
  TestKvPool pool(layout, static_cast<int>(ids.size()) / 16 + 2);
  const int n = static_cast<int>(ids.size());
  double sum = 0;
  Prefill(
      model, &pool, ids, chunk, [n](int p) { return p + 1 < n; },
      [&](int p, std::span<const float> logits) {
        sum += LogSumExp(logits) - logits[static_cast<size_t>(ids[static_cast<size_t>(p) + 1])];
      });
  return sum / (n - 1);
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_LOGITS_GOLDEN_H_
