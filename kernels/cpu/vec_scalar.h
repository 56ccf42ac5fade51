// The abstract vector machine of the kernels, in plain C++: 16 float lanes (VF), 16 int32 lanes (VI). The other vec_*.h
// implement the same operations with intrinsics and must give the same bits.
#ifndef BATON_KERNELS_CPU_VEC_SCALAR_H_
#define BATON_KERNELS_CPU_VEC_SCALAR_H_

#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

#define BATON_INLINE static inline __attribute__((always_inline))

// One operation a line.
// clang-format off
namespace baton::kernels::cpu::scalar {

struct VF { float v[16]; };
struct VI { int32_t v[16]; };

#define BATON_EACH for (int i = 0; i < 16; ++i)

BATON_INLINE VF Set1(float x) { VF r; BATON_EACH r.v[i] = x; return r; }
BATON_INLINE VF Zero() { return Set1(0); }
BATON_INLINE VF Load(const float* p) { VF r; memcpy(r.v, p, 64); return r; }
BATON_INLINE VF LoadN(const float* p, int n) { VF r; BATON_EACH r.v[i] = i < n ? p[i] : 0.0f; return r; }
BATON_INLINE void Store(float* p, VF a) { memcpy(p, a.v, 64); }
BATON_INLINE void StoreN(float* p, VF a, int n) { for (int i = 0; i < n; ++i) p[i] = a.v[i]; }
BATON_INLINE VF Add(VF a, VF b) { BATON_EACH a.v[i] += b.v[i]; return a; }
BATON_INLINE VF Sub(VF a, VF b) { BATON_EACH a.v[i] -= b.v[i]; return a; }
BATON_INLINE VF Mul(VF a, VF b) { BATON_EACH a.v[i] *= b.v[i]; return a; }
BATON_INLINE VF Div(VF a, VF b) { BATON_EACH a.v[i] /= b.v[i]; return a; }
// The second operand when either is NaN, as the x86 instruction does.
BATON_INLINE VF Max(VF a, VF b) { BATON_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
BATON_INLINE VF Fma(VF a, VF b, VF c) { BATON_EACH a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return a; }
// The same with denormal operands and results taken as zero. The others rely on FlushScope for that.
BATON_INLINE float Flush(float a) { return a > -0x1p-126f && a < 0x1p-126f ? __builtin_copysignf(0.0f, a) : a; }
BATON_INLINE VF AddFlushed(VF a, VF b) { BATON_EACH a.v[i] = Flush(Flush(a.v[i]) + Flush(b.v[i])); return a; }
BATON_INLINE VF FmaFlushed(VF a, VF b, VF c) {
  BATON_EACH {
    const float x = Flush(a.v[i]), y = Flush(b.v[i]), z = Flush(c.v[i]);
    float r = __builtin_fmaf(x, y, z);
    // Hardware calls a result tiny after rounding it as if exponents had no lower end: 2^-126 itself may be too high.
    if (r >= -0x1p-126f && r <= 0x1p-126f && r != 0) {
      const float scaled = __builtin_fmaf(x * 0x1p64f, y, z * 0x1p64f);
      if (scaled > -0x1p-62f && scaled < 0x1p-62f) r = __builtin_copysignf(0.0f, r);
    }
    a.v[i] = r;
  }
  return a;
}
struct FlushScope { FlushScope() {} };
// Two rows of bfloat16 as pairs in the lanes' halves: the first, and the second, of each pair.
BATON_INLINE VF LowBf16(VI a) { VF r; BATON_EACH r.v[i] = Bf16ToFloat(static_cast<uint16_t>(a.v[i])); return r; }
BATON_INLINE VF HighBf16(VI a) {
  VF r;
  BATON_EACH r.v[i] = Bf16ToFloat(static_cast<uint16_t>(static_cast<uint32_t>(a.v[i]) >> 16));
  return r;
}
// Lanes where a < b (false for NaN) take x, others y.
BATON_INLINE VF SelectLess(VF a, VF b, VF x, VF y) { BATON_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i]; return x; }
// Lanes whose index is in [begin, end) take x, others y.
BATON_INLINE VF SelectRange(int begin, int end, VF x, VF y) {
  BATON_EACH x.v[i] = i >= begin && i < end ? x.v[i] : y.v[i];
  return x;
}
BATON_INLINE float ReduceAdd(VF a) {
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
  }
  return a.v[0];
}
BATON_INLINE float ReduceMax(VF a) {
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
  }
  return a.v[0];
}
BATON_INLINE VF LoadHalf(const void* p) {
  uint16_t h[16];
  memcpy(h, p, 32);
  VF r;
  BATON_EACH r.v[i] = HalfToFloat(h[i]);
  return r;
}
BATON_INLINE VF LoadBf16(const void* p) {
  uint16_t h[16];
  memcpy(h, p, 32);
  VF r;
  BATON_EACH r.v[i] = Bf16ToFloat(h[i]);
  return r;
}

BATON_INLINE VI Set1I(int32_t x) { VI r; BATON_EACH r.v[i] = x; return r; }
BATON_INLINE VF ToFloat(VI a) { VF r; BATON_EACH r.v[i] = static_cast<float>(a.v[i]); return r; }
BATON_INLINE VI Bits(VF a) { VI r; memcpy(r.v, a.v, 64); return r; }
BATON_INLINE VF FromBits(VI a) { VF r; memcpy(r.v, a.v, 64); return r; }
BATON_INLINE VI AddI(VI a, VI b) {
  BATON_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
BATON_INLINE VI SubI(VI a, VI b) {
  BATON_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]));
  return a;
}
BATON_INLINE VI LoadI(const void* p) { VI r; memcpy(r.v, p, 64); return r; }
BATON_INLINE void StoreI(void* p, VI a) { memcpy(p, a.v, 64); }
BATON_INLINE VI ShiftLeft16(VI a) { BATON_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << 16); return a; }
BATON_INLINE VI ShiftRight16(VI a) { BATON_EACH a.v[i] >>= 16; return a; }  // keeps the sign
BATON_INLINE VI ShiftLeft23(VI a) { BATON_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << 23); return a; }
BATON_INLINE VI AndI(VI a, VI b) { BATON_EACH a.v[i] &= b.v[i]; return a; }
BATON_INLINE VI MaxI(VI a, VI b) { BATON_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
BATON_INLINE int32_t ReduceMaxI(VI a) {
  int32_t r = a.v[0];
  BATON_EACH r = r > a.v[i] ? r : a.v[i];
  return r;
}
BATON_INLINE int32_t ReduceAddI(VI a) {
  int32_t r = 0;
  BATON_EACH r += a.v[i];
  return r;
}
// To nearest, ties to even; |a| < 2^22.
BATON_INLINE VI Round(VF a) {
  VI r;
  BATON_EACH {
    const float t = a.v[i] + 12582912.0f;  // 1.5 * 2^23: the sum's last place is 1
    int32_t bits;
    memcpy(&bits, &t, 4);
    r.v[i] = bits - 0x4b400000;
  }
  return r;
}
// Low bytes of the lanes.
BATON_INLINE void StoreBytes(int8_t* p, VI a) { BATON_EACH p[i] = static_cast<int8_t>(a.v[i]); }

// Integer dot products of kQuads * 4 codes of each panel with kRows rows of activations, 32 bytes apart:
// sum[panel][row] += codes * x.
template <int kPanels, int kRows, int kQuads>
BATON_INLINE void DotInt8(const uint8_t* codes, size_t panel_bytes, const int8_t* x, VI (*sum)[kRows]) {
  for (int p = 0; p < kPanels; ++p, codes += panel_bytes) {
    for (int r = 0; r < kRows; ++r) {
      for (int quad = 0; quad < kQuads; ++quad) {
        for (int lane = 0; lane < 16; ++lane) {
          for (int k = 0; k < 4; ++k) {
            sum[p][r].v[lane] += codes[(quad * 16 + lane) * 4 + k] * x[r * 32 + quad * 4 + k];
          }
        }
      }
    }
  }
}
// The 512 codes of a group of 4-bit codes, each plus `add`.
BATON_INLINE void ExpandNibbles(const uint8_t* codes, int add, uint8_t* wide) {
  for (int i = 0; i < 256; ++i) {
    wide[i] = static_cast<uint8_t>((codes[i] & 0xf) + add);
    wide[i + 256] = static_cast<uint8_t>((codes[i] >> 4) + add);
  }
}
// DotInt8 of a whole group of 4-bit codes.
template <int kPanels, int kRows>
BATON_INLINE void DotInt4(const uint8_t* codes, size_t panel_bytes, const int8_t* x, VI (*sum)[kRows]) {
  uint8_t wide[512];
  for (int p = 0; p < kPanels; ++p) {
    ExpandNibbles(codes + p * panel_bytes, 0, wide);
    DotInt8<1, kRows, 8>(wide, 0, x, sum + p);
  }
}

BATON_INLINE void StoreHalf(void* p, VF a) {
  uint16_t h[16];
  BATON_EACH h[i] = FloatToHalf(a.v[i]);
  memcpy(p, h, 32);
}

// In place.
BATON_INLINE void Transpose16(VF* m) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = m[i].v[j];
      m[i].v[j] = m[j].v[i];
      m[j].v[i] = t;
    }
  }
}

// 16 rows of 32 halves at rows[i] + offset (zeros where null), transposed: column c, as floats, at out + c * stride.
BATON_INLINE void TransposeHalves(const std::byte* const* rows, size_t offset, float* out, int64_t stride) {
  for (int i = 0; i < 16; ++i) {
    uint16_t halves[32] = {};
    if (rows[i] != nullptr) memcpy(halves, rows[i] + offset, sizeof halves);
    for (int c = 0; c < 32; ++c) out[c * stride + i] = HalfToFloat(halves[c]);
  }
}

}  // namespace baton::kernels::cpu::scalar
// clang-format on

#endif  // BATON_KERNELS_CPU_VEC_SCALAR_H_
