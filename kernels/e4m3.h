// The 8-bit float E4M3: sign, 4 bits of exponent with bias 7, 3 of mantissa; values up to 448, subnormals of 2^-9, one NaN
// of either sign (0x7f), no infinity. Every value is a bfloat16's and a half's.
//
// Source: OCP 8-bit Floating Point Specification (OFP8) 1.0; Micikevicius et al., "FP8 Formats for Deep Learning",
// arXiv:2209.05433.
#ifndef BATON_KERNELS_E4M3_H_
#define BATON_KERNELS_E4M3_H_

#include <cstdint>

namespace baton::kernels {

inline constexpr float kE4m3Max = 448;

float E4m3ToFloat(uint8_t code);
// To nearest, ties to even; beyond 448, infinity too, the largest of that sign (the specification's saturating mode).
uint8_t FloatToE4m3(float value);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_E4M3_H_
