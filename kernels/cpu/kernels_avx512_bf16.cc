// The AVX-512 kernels with bf16 products by vdpbf16ps. Compiled with AVX-512 BF16 flags (see BUILD.bazel).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec_avx512.h"

namespace baton::kernels::cpu {
namespace avx512_bf16 {

using namespace avx512;  // the abstract vector machine
constexpr int kTileRows = 8;
constexpr int64_t kAheadBytes = 8192;
constexpr int64_t kPairBytes = 4;  // two bfloat16

BATON_INLINE uint32_t RoundToBf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

BATON_INLINE void StorePair(uint8_t* at, const float* value) {
  const uint32_t pair = RoundToBf16(value[0]) | RoundToBf16(value[1]) << 16;
  memcpy(at, &pair, 4);
}

template <int kPanels, int kRows>
BATON_INLINE void PairStep(const uint8_t* w, const uint8_t* x, VF (*acc)[kRows]) {
  VI weights[kPanels];
  for (int p = 0; p < kPanels; ++p) weights[p] = LoadI(w + p * 64);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    int32_t pair;
    memcpy(&pair, x + r * kPairBytes, 4);
    const VI both = Set1I(pair);
    for (int p = 0; p < kPanels; ++p) {
      acc[p][r] = _mm512_dpbf16_ps(acc[p][r], reinterpret_cast<__m512bh>(weights[p]), reinterpret_cast<__m512bh>(both));
    }
  }
}

// clang-format off
#include "kernels/cpu/store_tile_impl.h"
#include "kernels/cpu/bf16_impl.h"
// clang-format on

}  // namespace avx512_bf16

const KernelTable& Avx512Bf16Kernels() {
  static const KernelTable table = [] {
    KernelTable t = Avx512Kernels();
    t.name = "avx512_bf16";
    t.round_row = avx512_bf16::RoundRow;
    t.rounded_pair_bytes = avx512_bf16::kPairBytes;
    t.matmul[kBf16DotLayout] = avx512_bf16::Bf16MatMul;
    return t;
  }();
  return table;
}

}  // namespace baton::kernels::cpu
