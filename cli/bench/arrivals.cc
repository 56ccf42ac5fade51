#include "cli/bench/arrivals.h"

#include <cmath>
#include <numbers>

#include "common/philox.h"

namespace baton::bench {

double RandomStream::Uniform() {
  // Never 0, whose logarithm is taken.
  return PhiloxUniform(seed_, stream_, next_++, 0xBA70) + 0x1.0p-54;
}

double RandomStream::Normal() {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

double RandomStream::Gamma(double shape, double scale) {
  // Below 1 the method needs a boost by one, undone by a power of a uniform.
  const double boost = shape < 1 ? std::pow(Uniform(), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return boost * d * v * scale;
  }
}

std::vector<double> Arrivals(const ArrivalOptions& options) {
  std::vector<double> starts;
  RandomStream random(options.seed, 0);
  double at = 0;
  while (starts.size() < options.max_requests) {
    at += random.Gamma(options.burstiness, 1 / (options.rate * options.burstiness));
    if (options.max_seconds > 0 && at > options.max_seconds) break;
    starts.push_back(at);
  }
  return starts;
}

}  // namespace baton::bench
