// What one step of this engine takes, learnt from its own steps: a least-squares fit over the latest ones of
//     duration = fixed + per_row * rows + per_position * (positions the rows attend to, summed)
// with no part negative. Old steps fade, so that a change of the machine is followed within some hundred steps.
//
// Thread contract: thread-compatible.
#ifndef BATON_ENGINE_STEP_COST_H_
#define BATON_ENGINE_STEP_COST_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace baton::engine {

struct StepCost {
  double fixed_us = 0;
  double per_row_us = 0;
  double per_position_us = 0;
  uint64_t samples = 0;  // steps learnt from; 0: nothing is known
  double Microseconds(int64_t rows, int64_t positions) const {
    return fixed_us + per_row_us * static_cast<double>(rows) + per_position_us * static_cast<double>(positions);
  }
};

class StepCostModel {
 public:
  // Durations that are not above zero (a simulated clock) are not learnt from.
  void Learn(int64_t rows, int64_t positions, absl::Duration duration);
  StepCost Fit() const;

 private:
  static constexpr int kTerms = 3;
  std::array<std::array<double, kTerms>, kTerms> a_{};  // weighted sums of products of terms
  std::array<double, kTerms> b_{};                      // of terms and duration
  uint64_t samples_ = 0;
  uint64_t cold_ = 0;  // steps before those
};

// By what factor the longest of fifty steps exceeds its forecast, which is a mean: a promise kept on average is broken half
// of the time. Follows the quantile as steps come: up by much where one was longer, down by little where not.
// Thread-compatible.
class StepCostExcess {
 public:
  void Learn(double forecast_us, absl::Duration duration);
  double factor() const { return factor_; }

 private:
  double factor_ = 1.25;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_STEP_COST_H_
