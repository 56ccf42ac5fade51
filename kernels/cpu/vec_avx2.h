// The abstract vector machine (see vec_scalar.h) on AVX2, FMA and F16C: 16 lanes are two registers.
#ifndef BATON_KERNELS_CPU_VEC_AVX2_H_
#define BATON_KERNELS_CPU_VEC_AVX2_H_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define BATON_INLINE static inline __attribute__((always_inline))

namespace baton::kernels::cpu::avx2 {

struct VF {
  __m256 lo, hi;
};
struct VI {
  __m256i lo, hi;
};

BATON_INLINE __m256i LaneIndex() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
// All ones in lanes whose index (plus first) is below n.
BATON_INLINE __m256i FirstLanes(int n, int first) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), LaneIndex());
}

BATON_INLINE VF Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BATON_INLINE VF Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BATON_INLINE VF Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_INLINE VF LoadN(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstLanes(n, 0)), _mm256_maskload_ps(p + 8, FirstLanes(n, 8))};
}
BATON_INLINE void Store(float* p, VF a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
BATON_INLINE void StoreN(float* p, VF a, int n) {
  _mm256_maskstore_ps(p, FirstLanes(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, FirstLanes(n, 8), a.hi);
}
BATON_INLINE VF Add(VF a, VF b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
BATON_INLINE VF Sub(VF a, VF b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
BATON_INLINE VF Mul(VF a, VF b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
BATON_INLINE VF Div(VF a, VF b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
BATON_INLINE VF Max(VF a, VF b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
BATON_INLINE VF Fma(VF a, VF b, VF c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
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
BATON_INLINE VF LowBf16(VI a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
BATON_INLINE VF HighBf16(VI a) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(a.hi, mask))};
}
BATON_INLINE VF SelectLess(VF a, VF b, VF x, VF y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
BATON_INLINE VF SelectRange(int begin, int end, VF x, VF y) {
  const __m256i lo = _mm256_andnot_si256(FirstLanes(begin, 0), FirstLanes(end, 0));
  const __m256i hi = _mm256_andnot_si256(FirstLanes(begin, 8), FirstLanes(end, 8));
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_castsi256_ps(lo)), _mm256_blendv_ps(y.hi, x.hi, _mm256_castsi256_ps(hi))};
}
BATON_INLINE float ReduceAdd(VF a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
BATON_INLINE float ReduceMax(VF a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
BATON_INLINE VF LoadHalf(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
BATON_INLINE VF LoadBf16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
BATON_INLINE void StoreHalf(void* p, VF a) {
  __m128i* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

BATON_INLINE VI Set1I(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
BATON_INLINE VF ToFloat(VI a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
BATON_INLINE VI Bits(VF a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
BATON_INLINE VF FromBits(VI a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
BATON_INLINE VI AddI(VI a, VI b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
BATON_INLINE VI SubI(VI a, VI b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
BATON_INLINE VI LoadI(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
BATON_INLINE void StoreI(void* p, VI a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, a.hi);
}
BATON_INLINE VI ShiftLeft16(VI a) { return {_mm256_slli_epi32(a.lo, 16), _mm256_slli_epi32(a.hi, 16)}; }
BATON_INLINE VI ShiftRight16(VI a) { return {_mm256_srai_epi32(a.lo, 16), _mm256_srai_epi32(a.hi, 16)}; }
BATON_INLINE VI ShiftLeft23(VI a) { return {_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)}; }
BATON_INLINE VI AndI(VI a, VI b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
BATON_INLINE VI MaxI(VI a, VI b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
BATON_INLINE int32_t ReduceMaxI(VI a) {
  const __m256i b = _mm256_max_epi32(a.lo, a.hi);
  __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
BATON_INLINE int32_t ReduceAddI(VI a) {
  const __m256i b = _mm256_add_epi32(a.lo, a.hi);
  __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
BATON_INLINE VI Round(VF a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
// The lanes are in [-127, 127], so that the packs do not saturate.
BATON_INLINE void StoreBytes(int8_t* p, VI a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

BATON_INLINE __m256i BroadcastQuad(const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// vpmaddubsw saturates its 16-bit sums of two products. |w| <= 128 times |x| <= 127, twice, is 32512: below 32768, so
// with the sign moved from w to x it is exact, also for w = -128. Sums signed values: no offset to take off.
template <int kPanels, int kRows, int kQuads>
BATON_INLINE void DotInt8(const uint8_t* codes, size_t, const int8_t* x, VI (*sums)[kRows]) {
  static_assert(kPanels == 1);
  VI* sum = sums[0];
  const __m256i ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8(static_cast<char>(0x80));
  for (int quad = 0; quad < kQuads; ++quad) {
    const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + quad * 64));
    const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + quad * 64 + 32));
    const __m256i s0 = _mm256_xor_si256(w0, flip), s1 = _mm256_xor_si256(w1, flip);
    const __m256i a0 = _mm256_abs_epi8(s0), a1 = _mm256_abs_epi8(s1);
    for (int r = 0; r < kRows; ++r) {
      const __m256i v = BroadcastQuad(x + r * 32 + quad * 4);
      const __m256i p0 = _mm256_maddubs_epi16(a0, _mm256_sign_epi8(v, s0));
      const __m256i p1 = _mm256_maddubs_epi16(a1, _mm256_sign_epi8(v, s1));
      sum[r].lo = _mm256_add_epi32(sum[r].lo, _mm256_madd_epi16(p0, ones));
      sum[r].hi = _mm256_add_epi32(sum[r].hi, _mm256_madd_epi16(p1, ones));
    }
  }
}

// 2 * 15 * 127 a step, times 8 quads, is 30480: the 16-bit sums hold a whole group.
template <int kPanels, int kRows>
BATON_INLINE void DotInt4(const uint8_t* codes, size_t, const int8_t* x, VI (*sums)[kRows]) {
  static_assert(kPanels == 1);
  VI* sum = sums[0];
  const __m256i low = _mm256_set1_epi8(0xf), ones = _mm256_set1_epi16(1);
  VI words[kRows];
  for (int r = 0; r < kRows; ++r) words[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int quad = 0; quad < 4; ++quad) {
    const __m256i b0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + quad * 64));
    const __m256i b1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + quad * 64 + 32));
    const __m256i l0 = _mm256_and_si256(b0, low), l1 = _mm256_and_si256(b1, low);
    const __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(b0, 4), low);
    const __m256i h1 = _mm256_and_si256(_mm256_srli_epi16(b1, 4), low);
    for (int r = 0; r < kRows; ++r) {
      const __m256i v = BroadcastQuad(x + r * 32 + quad * 4);
      const __m256i u = BroadcastQuad(x + r * 32 + quad * 4 + 16);
      words[r].lo = _mm256_add_epi16(words[r].lo, _mm256_maddubs_epi16(l0, v));
      words[r].hi = _mm256_add_epi16(words[r].hi, _mm256_maddubs_epi16(l1, v));
      words[r].lo = _mm256_add_epi16(words[r].lo, _mm256_maddubs_epi16(h0, u));
      words[r].hi = _mm256_add_epi16(words[r].hi, _mm256_maddubs_epi16(h1, u));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sum[r].lo = _mm256_add_epi32(sum[r].lo, _mm256_madd_epi16(words[r].lo, ones));
    sum[r].hi = _mm256_add_epi32(sum[r].hi, _mm256_madd_epi16(words[r].hi, ones));
  }
}

BATON_INLINE void ExpandNibbles(const uint8_t*, int, uint8_t*) {}  // kExpandsNibbles is false

BATON_INLINE void Transpose8(const __m256* in, __m256* out) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    out[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

BATON_INLINE void Transpose16(VF* m) {
  __m256 in[4][8], out[8];
  for (int i = 0; i < 8; ++i) {
    in[0][i] = m[i].lo;
    in[1][i] = m[i].hi;
    in[2][i] = m[i + 8].lo;
    in[3][i] = m[i + 8].hi;
  }
  Transpose8(in[0], out);
  for (int i = 0; i < 8; ++i) m[i].lo = out[i];
  Transpose8(in[2], out);
  for (int i = 0; i < 8; ++i) m[i].hi = out[i];
  Transpose8(in[1], out);
  for (int i = 0; i < 8; ++i) m[i + 8].lo = out[i];
  Transpose8(in[3], out);
  for (int i = 0; i < 8; ++i) m[i + 8].hi = out[i];
}

// 16 rows of 32 halves at rows[i] + offset (zeros where null), transposed: column c, as floats, at out + c * stride.
BATON_INLINE void TransposeHalves(const std::byte* const* rows, size_t offset, float* out, int64_t stride) {
  for (int c = 0; c < 32; c += 16) {
    VF m[16];
    for (int i = 0; i < 16; ++i) m[i] = rows[i] == nullptr ? Zero() : LoadHalf(rows[i] + offset + 2 * c);
    Transpose16(m);
    for (int i = 0; i < 16; ++i) Store(out + (c + i) * stride, m[i]);
  }
}

}  // namespace baton::kernels::cpu::avx2

#endif  // BATON_KERNELS_CPU_VEC_AVX2_H_
