#include "model/rope.h"

#include "model/exact_math.h"

namespace baton::model {

RopeAngles::RopeAngles(const RopeConfig& rope, int rope_dim) {
  const int num_pairs = rope_dim / 2;
  // theta^(2i/rope_dim) = (theta^(1/num_pairs))^i
  const double ratio = Root(rope.theta, num_pairs);
  frequencies_.reserve(static_cast<size_t>(num_pairs));
  double power = 1;
  for (int i = 0; i < num_pairs; ++i) {
    const double factor = rope.freq_factors.empty() ? 1 : double{rope.freq_factors[i]};
    frequencies_.push_back(1 / (power * rope.linear_factor * factor));
    power *= ratio;
  }
}

void RopeAngles::Fill(std::span<const int32_t> positions, float* cos, float* sin) const {
  size_t at = 0;
  for (int32_t position : positions) {
    for (double frequency : frequencies_) {
      double s = 0, c = 0;
      SinCos(position * frequency, &s, &c);
      cos[at] = static_cast<float>(c);
      sin[at] = static_cast<float>(s);
      ++at;
    }
  }
}

}  // namespace baton::model
