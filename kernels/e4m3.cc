#include "kernels/e4m3.h"

#include <cstring>

namespace baton::kernels {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

float E4m3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, magnitude = code & 0x7f;
  if (magnitude == 0x7f) return FloatOf(sign | 0x7fc00000);
  // The same bits as the float's are 2^120 times too small, subnormals too.
  return FloatOf(sign | magnitude << 20) * 0x1p120f;
}

uint8_t FloatToE4m3(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7f;
  if (magnitude >= BitsOf(kE4m3Max)) return sign | 0x7e;
  if (magnitude >= BitsOf(0x1p-6f)) {  // normal
    return sign | static_cast<uint8_t>((magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20);
  }
  // Subnormals are multiples of 2^-9, the last place of floats from 2^14 on, to which the addition rounds.
  return sign | static_cast<uint8_t>(BitsOf(FloatOf(magnitude) + 0x1p14f) - BitsOf(0x1p14f));
}

}  // namespace baton::kernels
