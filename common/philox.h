// Counter-based random numbers: Philox4x32-10.
//
// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. A draw is a
// pure function of (key, counter): no state travels with a request, so any worker continues any request identically.
#ifndef BATON_COMMON_PHILOX_H_
#define BATON_COMMON_PHILOX_H_

#include <array>
#include <cstdint>

namespace baton {

// Ten rounds over a 128-bit counter with a 64-bit key.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1), a multiple of 2^-53. The key is the request's seed; the counter names the draw: which choice, at
// which absolute position of the sequence (prompt included), and the how-manieth draw there.
constexpr double PhiloxUniform(uint64_t seed, uint32_t choice_index, uint32_t position, uint32_t draw_index) {
  const auto r = Philox4x32({choice_index, position, draw_index, 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{r[1]} << 32 | r[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace baton

#endif  // BATON_COMMON_PHILOX_H_
