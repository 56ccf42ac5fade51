// bf16_impl.h's step by two FMAs, for machines without vdpbf16ps and those where it is slower (Intel: half the rate of
// FMA, measured on Sapphire Rapids). Included before it.

constexpr int64_t kPairBytes = 8;  // two floats

BATON_INLINE void StorePair(uint8_t* at, const float* value) {
  for (int i = 0; i < 2; ++i) {
    uint32_t bits;
    memcpy(&bits, value + i, 4);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = nan ? (bits | 0x400000) & 0xffff0000 : (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(at + 4 * i, &rounded, 4);
  }
}

template <int kPanels, int kRows>
BATON_INLINE void PairStep(const uint8_t* w, const uint8_t* x, VF (*acc)[kRows]) {
  VF low[kPanels], high[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    const VI both = LoadI(w + p * 64);
    low[p] = LowBf16(both);
    high[p] = HighBf16(both);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float value[2];
    memcpy(value, x + r * kPairBytes, 8);
    const VF first = Set1(value[0]), second = Set1(value[1]);
    for (int p = 0; p < kPanels; ++p) acc[p][r] = FmaFlushed(high[p], second, acc[p][r]);
    for (int p = 0; p < kPanels; ++p) acc[p][r] = FmaFlushed(low[p], first, acc[p][r]);
  }
}
