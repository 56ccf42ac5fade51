#include "engine/step_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace baton::engine {
namespace {

constexpr double kFade = 0.995;  // a step's weight halves in about 140
constexpr uint64_t kColdSteps = 2;  // the first ones touch pages and caches for the first time, and say nothing
// Steps that were all alike do not tell their terms apart. Then the fixed part gets the whole: too low a guess for larger
// steps is put right by trying one, too high a guess would keep them away for ever.
constexpr double kRidge[] = {1e-6, 1e-4, 1e-4};

}  // namespace

void StepCostModel::Learn(int64_t rows, int64_t positions, absl::Duration duration) {
  const double us = absl::ToDoubleMicroseconds(duration);
  if (!(us > 0) || rows <= 0 || cold_++ < kColdSteps) return;
  const double terms[kTerms] = {1.0, static_cast<double>(rows), static_cast<double>(positions)};
  // Long steps vary more: without the weight they alone would decide.
  const double weight = 1 / us;
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) a_[i][j] = a_[i][j] * kFade + weight * terms[i] * terms[j];
    b_[i] = b_[i] * kFade + weight * terms[i] * us;
  }
  ++samples_;
}

StepCost StepCostModel::Fit() const {
  StepCost cost;
  cost.samples = samples_;
  if (samples_ == 0) return cost;
  // Six sets of terms at most: the largest one whose solution has no negative part. A little ridge keeps steps that are
  // all alike (an idle decode worker) solvable.
  for (const std::vector<int>& terms :
       {std::vector<int>{0, 1, 2}, {0, 1}, {1, 2}, {0, 2}, {1}, {0}}) {
    const size_t n = terms.size();
    std::vector<std::vector<double>> m(n, std::vector<double>(n + 1));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) m[i][j] = a_[terms[i]][terms[j]];
      m[i][i] *= 1 + kRidge[terms[i]];
      m[i][n] = b_[terms[i]];
    }
    bool solvable = true;
    for (size_t i = 0; i < n && solvable; ++i) {
      const double pivot = m[i][i];  // symmetric positive definite: no exchange of rows needed
      solvable = std::isfinite(pivot) && pivot > 0;
      for (size_t k = 0; k < n && solvable; ++k) {
        if (k == i) continue;
        const double f = m[k][i] / pivot;
        for (size_t j = i; j <= n; ++j) m[k][j] -= f * m[i][j];
      }
    }
    std::array<double, kTerms> x{};
    for (size_t i = 0; i < n && solvable; ++i) {
      x[terms[i]] = m[i][n] / m[i][i];
      solvable = std::isfinite(x[terms[i]]) && x[terms[i]] >= 0;
    }
    if (!solvable) continue;
    cost.fixed_us = x[0];
    cost.per_row_us = x[1];
    cost.per_position_us = x[2];
    return cost;
  }
  return cost;
}

void StepCostExcess::Learn(double forecast_us, absl::Duration duration) {
  constexpr double kQuantile = 0.98, kStep = 0.15, kLeast = 1, kMost = 4;
  const double us = absl::ToDoubleMicroseconds(duration);
  if (!(forecast_us > 0) || !(us > 0)) return;
  factor_ += kStep * (us > factor_ * forecast_us ? kQuantile : kQuantile - 1);
  factor_ = std::clamp(factor_, kLeast, kMost);
}

}  // namespace baton::engine
