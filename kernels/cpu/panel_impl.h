// Panels with integer codes (packed_matrix.h); included like matmul_impl.h, before it.

// How the scales of a group lie in a panel (packed_matrix.h).
enum class ScaleKind { kHalf, kHalfMin, kFloatMin, kPair };

constexpr int ScaleBytes(ScaleKind kind) {
  return kind == ScaleKind::kHalf ? 32 : kind == ScaleKind::kHalfMin ? 64 : 128;
}
constexpr bool HasMin(ScaleKind kind) { return kind == ScaleKind::kHalfMin || kind == ScaleKind::kFloatMin; }

// `pairs` pairs of groups with 4-bit codes as ones with 8-bit codes: those of the file plus `add`.
template <ScaleKind kScale>
BATON_INLINE void ExpandPanels(const uint8_t* from, int64_t pairs, int add, uint8_t* to) {
  constexpr int kScaleBytes = ScaleBytes(kScale);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    memcpy(to, from, 2 * kScaleBytes);
    from += 2 * kScaleBytes;
    to += 2 * kScaleBytes;
    for (int half = 0; half < 2; ++half, from += 256, to += 512) {
      ExpandNibbles(from, add, to);
    }
  }
}
