// Cosines and sines of the rotary position embedding.
//
// On the CPU computed per batch, for the rows at hand (a device keeps them: device_angles.h): a table of all positions would
// take 67 MB for Gemma 3's two bases and 32,768 positions, and half a second at start. A value is a pure function of (rope,
// position), equal on every host.
//
// Thread contract: const after construction.
#ifndef BATON_MODEL_ROPE_H_
#define BATON_MODEL_ROPE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace baton::model {

class RopeAngles {
 public:
  RopeAngles(const RopeConfig& rope, int rope_dim);

  // cos and sin of row r and pair i at [r * rope_dim/2 + i]; both have room for positions.size() rows.
  void Fill(std::span<const int32_t> positions, float* cos, float* sin) const;

  int num_pairs() const { return static_cast<int>(frequencies_.size()); }
  uint64_t memory_bytes() const { return frequencies_.size() * sizeof(double); }

 private:
  std::vector<double> frequencies_;  // radians a position, [rope_dim/2]
};

}  // namespace baton::model

#endif  // BATON_MODEL_ROPE_H_
