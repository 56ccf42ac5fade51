#include "cli/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace baton::bench {

double Percentile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  const double position = std::clamp(p, 0.0, 100.0) / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * fraction;
}

Distribution Describe(std::vector<double> values, std::span<const double> percentiles) {
  Distribution d;
  d.count = values.size();
  d.percentiles.assign(percentiles.size(), 0);
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double v : values) sum += v;
  d.mean = sum / n;
  // Two passes: the squares of times in milliseconds would lose digits against their mean.
  double squares = 0;
  for (const double v : values) squares += (v - d.mean) * (v - d.mean);
  d.std_dev = std::sqrt(squares / n);
  d.median = Percentile(values, 50);
  d.min = values.front();
  d.max = values.back();
  for (size_t i = 0; i < percentiles.size(); ++i) d.percentiles[i] = Percentile(values, percentiles[i]);
  return d;
}

}  // namespace baton::bench
