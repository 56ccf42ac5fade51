// The abstract vector machine (see vec_scalar.h) on AVX-512 F, BW, VL, DQ and VNNI.
#ifndef BATON_KERNELS_CPU_VEC_AVX512_H_
#define BATON_KERNELS_CPU_VEC_AVX512_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define BATON_INLINE static inline __attribute__((always_inline))

namespace baton::kernels::cpu::avx512 {

using VF = __m512;
using VI = __m512i;

BATON_INLINE __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>(n <= 0 ? 0 : n >= 16 ? 0xffff : (1u << n) - 1);
}

BATON_INLINE VF Set1(float x) { return _mm512_set1_ps(x); }
BATON_INLINE VF Zero() { return _mm512_setzero_ps(); }
BATON_INLINE VF Load(const float* p) { return _mm512_loadu_ps(p); }
BATON_INLINE VF LoadN(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
BATON_INLINE void Store(float* p, VF a) { _mm512_storeu_ps(p, a); }
BATON_INLINE void StoreN(float* p, VF a, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n), a); }
BATON_INLINE VF Add(VF a, VF b) { return _mm512_add_ps(a, b); }
BATON_INLINE VF Sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
BATON_INLINE VF Mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
BATON_INLINE VF Div(VF a, VF b) { return _mm512_div_ps(a, b); }
BATON_INLINE VF Max(VF a, VF b) { return _mm512_max_ps(a, b); }
BATON_INLINE VF Fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
BATON_INLINE VF AddFlushed(VF a, VF b) { return Add(a, b); }
BATON_INLINE VF FmaFlushed(VF a, VF b, VF c) { return Fma(a, b, c); }
// While it lives, denormal operands and results of this thread are zero.
class FlushScope {
 public:
  FlushScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushScope() { _mm_setcsr(saved_); }
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  const unsigned saved_;
};
BATON_INLINE VF LowBf16(VI a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
BATON_INLINE VF HighBf16(VI a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
BATON_INLINE VF SelectLess(VF a, VF b, VF x, VF y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
BATON_INLINE VF SelectRange(int begin, int end, VF x, VF y) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(FirstLanes(end) & ~FirstLanes(begin)), y, x);
}
BATON_INLINE float ReduceAdd(VF a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
BATON_INLINE float ReduceMax(VF a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
BATON_INLINE VF LoadHalf(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
BATON_INLINE VF LoadBf16(const void* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
BATON_INLINE void StoreHalf(void* p, VF a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

BATON_INLINE VI Set1I(int32_t x) { return _mm512_set1_epi32(x); }
BATON_INLINE VF ToFloat(VI a) { return _mm512_cvtepi32_ps(a); }
BATON_INLINE VI Bits(VF a) { return _mm512_castps_si512(a); }
BATON_INLINE VF FromBits(VI a) { return _mm512_castsi512_ps(a); }
BATON_INLINE VI AddI(VI a, VI b) { return _mm512_add_epi32(a, b); }
BATON_INLINE VI SubI(VI a, VI b) { return _mm512_sub_epi32(a, b); }
BATON_INLINE VI LoadI(const void* p) { return _mm512_loadu_si512(p); }
BATON_INLINE void StoreI(void* p, VI a) { _mm512_storeu_si512(p, a); }
BATON_INLINE VI ShiftLeft16(VI a) { return _mm512_slli_epi32(a, 16); }
BATON_INLINE VI ShiftRight16(VI a) { return _mm512_srai_epi32(a, 16); }
BATON_INLINE VI ShiftLeft23(VI a) { return _mm512_slli_epi32(a, 23); }
BATON_INLINE VI AndI(VI a, VI b) { return _mm512_and_si512(a, b); }
BATON_INLINE VI MaxI(VI a, VI b) { return _mm512_max_epi32(a, b); }
BATON_INLINE int32_t ReduceMaxI(VI a) { return _mm512_reduce_max_epi32(a); }
BATON_INLINE int32_t ReduceAddI(VI a) { return _mm512_reduce_add_epi32(a); }
BATON_INLINE VI Round(VF a) { return _mm512_cvtps_epi32(a); }
BATON_INLINE void StoreBytes(int8_t* p, VI a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

// Four activations in every lane.
BATON_INLINE VI BroadcastQuad(const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, sizeof quad);
  return _mm512_set1_epi32(quad);
}

template <int kPanels, int kRows, int kQuads>
BATON_INLINE void DotInt8(const uint8_t* codes, size_t panel_bytes, const int8_t* x, VI (*sum)[kRows]) {
#pragma GCC unroll 8
  for (int quad = 0; quad < kQuads; ++quad) {
    VI w[kPanels];
    for (int p = 0; p < kPanels; ++p) w[p] = _mm512_loadu_si512(codes + p * panel_bytes + quad * 64);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const VI activations = BroadcastQuad(x + r * 32 + quad * 4);
      for (int p = 0; p < kPanels; ++p) sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], w[p], activations);
    }
  }
}
template <int kPanels, int kRows>
BATON_INLINE void DotInt4(const uint8_t* codes, size_t panel_bytes, const int8_t* x, VI (*sum)[kRows]) {
  const VI low = _mm512_set1_epi8(0xf);
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      const VI both = _mm512_loadu_si512(codes + p * panel_bytes + quad * 64);
      const VI first = _mm512_and_si512(both, low);
      const VI second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      for (int r = 0; r < kRows; ++r) {
        sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], first, BroadcastQuad(x + r * 32 + quad * 4));
        sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], second, BroadcastQuad(x + r * 32 + quad * 4 + 16));
      }
    }
  }
}
BATON_INLINE void ExpandNibbles(const uint8_t* codes, int add, uint8_t* wide) {
  const VI low = _mm512_set1_epi8(0xf);
  const VI table = _mm512_add_epi8(
      _mm512_set4_epi32(0x0f0e0d0c, 0x0b0a0908, 0x07060504, 0x03020100), _mm512_set1_epi8(static_cast<char>(add)));
  for (int i = 0; i < 4; ++i) {
    const VI both = _mm512_loadu_si512(codes + i * 64);
    _mm512_storeu_si512(wide + i * 64, _mm512_shuffle_epi8(table, _mm512_and_si512(both, low)));
    _mm512_storeu_si512(wide + 256 + i * 64,
                        _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(both, 4), low)));
  }
}

BATON_INLINE void Transpose16(VF* m) {
  VF t[16];
  // Pairs of rows, then pairs of pairs: 4x4 tiles transposed within each 128-bit lane.
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    m[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    m[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    m[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    m[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  // Then the 4x4 matrix of 128-bit lanes.
  for (int i = 0; i < 4; ++i) {
    const VF a = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88), b = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xdd);
    const VF c = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0x88), d = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0xdd);
    t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) m[i] = t[i];
}

// 16 rows of 32 halves at rows[i] + offset (zeros where null), transposed: column c, as floats, at out + c * stride.
BATON_INLINE void TransposeHalves(const std::byte* const* rows, size_t offset, float* out, int64_t stride) {
  VF m[16];  // pairs of halves as one element: half the shuffles
  for (int i = 0; i < 16; ++i) {
    m[i] = rows[i] == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(rows[i] + offset);
  }
  Transpose16(m);
  alignas(64) uint16_t halves[16][32];
  alignas(64) static constexpr uint16_t kEvenThenOdd[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                            1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const VI index = _mm512_load_si512(kEvenThenOdd);
  for (int i = 0; i < 16; ++i) {
    _mm512_store_si512(halves[i], _mm512_permutexvar_epi16(index, _mm512_castps_si512(m[i])));
  }
  // Through memory on purpose: converting a loaded half needs no shuffle, and shuffles are what limits this.
  __asm__ volatile("" : : "r"(halves) : "memory");
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_ps(out + 2 * i * stride, LoadHalf(halves[i]));
    _mm512_storeu_ps(out + (2 * i + 1) * stride, LoadHalf(halves[i] + 16));
  }
}

}  // namespace baton::kernels::cpu::avx512

#endif  // BATON_KERNELS_CPU_VEC_AVX512_H_
