// Matrix products over the abstract vector machine; included by each instruction set's source file inside its own
// namespace, after its vec_*.h and with `using namespace` of it. No include guard on purpose.
//
// Orders (kernels/README.md): integer layouts take the groups of 32 in ascending k, and per group
//   acc = fma(float(isum), d_w * d_x, acc), then acc = fma(min_w, s_x, acc) if the format has minimums;
// float layouts take acc = fma(w, x, acc) in ascending k. Tile sizes change which outputs are computed together, never
// the order within one.

// Memory that is read next, asked for while this is computed: of each panel some cache lines for each pair of groups.
struct Ahead {
  const uint8_t* from = nullptr;  // the first panel's
  size_t panel_bytes = 0;
  int lines = 0;
};
// Weights come from memory faster than the hardware's prefetcher asks for them. Bytes ahead of one panel that is streamed, and
// of several.
constexpr int kAheadBytes = 8192, kAheadBytesOfSeveral = 4096;

// acc[panel][row] of one group; panels are panel_bytes apart, rows are in one activation cell.
template <int kPanels, int kRows, int kBits, ScaleKind kScale>
BATON_INLINE void GroupStep(const uint8_t* scales, const uint8_t* codes, size_t panel_bytes, const ActivationCell& x,
                            VF (*acc)[kRows]) {
  constexpr int kSub = kRows < kSumRows ? kRows : kSumRows;
#pragma GCC unroll 8
  for (int r0 = 0; r0 < kRows; r0 += kSub) {
    VI sum[kPanels][kSub];
    if constexpr (kScale == ScaleKind::kPair) {
      for (int half = 0; half < 2; ++half) {
        for (int p = 0; p < kPanels; ++p) {
          for (int r = 0; r < kSub; ++r) sum[p][r] = Set1I(kInt8IsOffset ? x.half_offset[(r0 + r) * 2 + half] : 0);
        }
        DotInt8<kPanels, kSub, 4>(codes + half * 256, panel_bytes, x.q + r0 * 32 + half * 16, sum);
        for (int p = 0; p < kPanels; ++p) {
          const VF scale = Load(reinterpret_cast<const float*>(scales + p * panel_bytes + half * 64));
          for (int r = 0; r < kSub; ++r) {
            acc[p][r0 + r] = Fma(ToFloat(sum[p][r]), Mul(scale, Set1(x.d[r0 + r])), acc[p][r0 + r]);
          }
        }
      }
    } else {
      for (int r = 0; r < kSub; ++r) {
        // q4_0's codes carry +8, a sixteenth of 128.
        const int32_t start = kBits == 8 ? (kInt8IsOffset ? x.offset[r0 + r] : 0)
                                         : (kScale == ScaleKind::kHalf ? x.offset[r0 + r] / 16 : 0);
        for (int p = 0; p < kPanels; ++p) sum[p][r] = Set1I(start);
      }
      if constexpr (kBits == 8) {
        DotInt8<kPanels, kSub, 8>(codes, panel_bytes, x.q + r0 * 32, sum);
      } else {
        DotInt4<kPanels, kSub>(codes, panel_bytes, x.q + r0 * 32, sum);
      }
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* at = scales + p * panel_bytes;
        VF scale, minimum;
        if constexpr (kScale == ScaleKind::kFloatMin) {
          scale = Load(reinterpret_cast<const float*>(at));
          minimum = Load(reinterpret_cast<const float*>(at + 64));
        } else {
          scale = LoadHalf(at);
          if constexpr (HasMin(kScale)) minimum = LoadHalf(at + 32);
        }
        for (int r = 0; r < kSub; ++r) {
          acc[p][r0 + r] = Fma(ToFloat(sum[p][r]), Mul(scale, Set1(x.d[r0 + r])), acc[p][r0 + r]);
        }
        if constexpr (HasMin(kScale)) {
          for (int r = 0; r < kSub; ++r) acc[p][r0 + r] = Fma(minimum, Set1(x.s[r0 + r]), acc[p][r0 + r]);
        }
      }
    }
  }
}

// The outputs of kPanels panels, the first at `panel_at`, and kRows rows from `row` on, which are in one block.
template <int kPanels, int kRows, int kBits, ScaleKind kScale>
static void IntegerTile(const MatMulArgs& a, const uint8_t* panel_at, size_t panel_bytes, int64_t panel, int64_t row,
                        Ahead ahead) {
  constexpr int kScaleBytes = ScaleBytes(kScale), kCodeBytes = kBits * 64;
  const ActivationBlock block = BlockOfRow(a.quantized, row);
  const int64_t cell_bytes = block.rows * kActivationCellBytes;
  const int64_t row_in_block = row % kActivationBlockRows;
  const int64_t groups = a.cols / 32;
  uint8_t* cell = block.cells;
  VF acc[kPanels][kRows];
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) acc[p][r] = Zero();
  }
  for (int64_t g = 0; g < groups; g += 2, panel_at += 2 * (kScaleBytes + kCodeBytes)) {
    for (int p = 0; p < kPanels; ++p) {
      for (int line = 0; line < ahead.lines; ++line) __builtin_prefetch(ahead.from + p * ahead.panel_bytes + line * 64);
    }
    ahead.from += ahead.lines * 64;
    const uint8_t* codes = panel_at + 2 * kScaleBytes;
    GroupStep<kPanels, kRows, kBits, kScale>(panel_at, codes, panel_bytes, CellAt(cell, block.rows, row_in_block), acc);
    cell += cell_bytes;
    if (g + 1 == groups) break;
    GroupStep<kPanels, kRows, kBits, kScale>(panel_at + kScaleBytes, codes + kCodeBytes, panel_bytes,
                                             CellAt(cell, block.rows, row_in_block), acc);
    cell += cell_bytes;
  }
  for (int p = 0; p < kPanels; ++p) StoreTile(a, panel + p, row, kRows, acc[p]);
}

// Rows [begin, end) of kPanels panels; begin is the first row of a block.
template <int kPanels, int kBits, ScaleKind kScale>
BATON_INLINE void IntegerRows(const MatMulArgs& a, const uint8_t* panel_at, size_t panel_bytes, int64_t panel,
                              int64_t begin, int64_t end, Ahead ahead) {
  static_assert(kActivationBlockRows % kTileRows == 0);
  for (int64_t row = begin; row < end;) {
    const int64_t left = end - row;
    if (left >= kTileRows) {
      IntegerTile<kPanels, kTileRows, kBits, kScale>(a, panel_at, panel_bytes, panel, row, ahead);
      row += kTileRows;
    } else if (left >= 4) {
      IntegerTile<kPanels, 4, kBits, kScale>(a, panel_at, panel_bytes, panel, row, ahead);
      row += 4;
    } else if (left >= 2) {
      IntegerTile<kPanels, 2, kBits, kScale>(a, panel_at, panel_bytes, panel, row, ahead);
      row += 2;
    } else {
      IntegerTile<kPanels, 1, kBits, kScale>(a, panel_at, panel_bytes, panel, row, ahead);
      row += 1;
    }
    ahead.lines = 0;
  }
}

template <int kPanels, int kBits, ScaleKind kScale>
BATON_INLINE void IntegerPanels(const MatMulArgs& a, int64_t panel, int64_t begin, int64_t end) {
  const uint8_t* at = a.panels + panel * a.panel_bytes;
  const int64_t pairs = (a.cols / 32 + 1) / 2;
  const bool few_rows = a.m <= kFewRows;
  Ahead ahead = {at + (few_rows ? kAheadBytes : kAheadBytesOfSeveral), a.panel_bytes, 2 * (ScaleBytes(kScale) + kBits * 64) / 64};
  if constexpr (kBits == 4 && kExpandsNibbles) {
    if (!few_rows) {
      ahead.from = at + kPanels * a.panel_bytes;  // these are read at once
      const size_t wide_bytes = pairs * 2 * (ScaleBytes(kScale) + 512);
      ExpandPanels<kScale>(at, kPanels * pairs, kScale == ScaleKind::kHalf ? 120 : 128, a.scratch);
      IntegerRows<kPanels, 8, kScale>(a, a.scratch, wide_bytes, panel, begin, end, ahead);
      return;
    }
  }
  IntegerRows<kPanels, kBits, kScale>(a, at, a.panel_bytes, panel, begin, end, ahead);
}

template <int kBits, ScaleKind kScale>
static void IntegerMatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  // A block of activation rows stays in the second-level cache while all panels pass over it.
  constexpr int kUnit = kActivationBlockRows;
  int64_t block_rows = kActivationCacheBytes / (a.cols * kActivationCellBytes / 32 + 1) / kUnit * kUnit;
  if (block_rows < kUnit) block_rows = kUnit;
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    int64_t panel = panel_begin;
    if constexpr (kTilePanels > 1) {
      if (a.m > kFewRows) {  // fewer rows stream one panel
        for (; panel + kTilePanels <= panel_end; panel += kTilePanels) {
          IntegerPanels<kTilePanels, kBits, kScale>(a, panel, begin, end);
        }
      }
    }
    for (; panel < panel_end; ++panel) IntegerPanels<1, kBits, kScale>(a, panel, begin, end);
  }
}

enum class FloatKind { kF32, kF16, kBF16 };

template <FloatKind kKind>
BATON_INLINE VF LoadWeights(const uint8_t* panel, int64_t k) {
  if constexpr (kKind == FloatKind::kF32) return Load(reinterpret_cast<const float*>(panel + k * 64));
  if constexpr (kKind == FloatKind::kF16) return LoadHalf(panel + k * 32);
  if constexpr (kKind == FloatKind::kBF16) return LoadBf16(panel + k * 32);
}

// kPanels x kRows outputs: independent chains that hide the latency of the additions.
template <int kPanels, int kRows, FloatKind kKind>
BATON_INLINE void FloatTileAt(const MatMulArgs& a, int64_t panel, int64_t row) {
  VF acc[kPanels][kRows];
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) acc[p][r] = Zero();
  }
  const uint8_t* w = a.panels + panel * a.panel_bytes;
  const float* x = a.x + row * a.x_stride;
  for (int64_t k = 0; k < a.cols; ++k) {
    VF weights[kPanels];
    for (int p = 0; p < kPanels; ++p) weights[p] = LoadWeights<kKind>(w + p * a.panel_bytes, k);
    for (int r = 0; r < kRows; ++r) {
      const VF value = Set1(x[r * a.x_stride + k]);
      for (int p = 0; p < kPanels; ++p) acc[p][r] = Fma(weights[p], value, acc[p][r]);
    }
  }
  for (int p = 0; p < kPanels; ++p) StoreTile(a, panel + p, row, kRows, acc[p]);
}

template <int kPanels, FloatKind kKind>
BATON_INLINE void FloatPanels(const MatMulArgs& a, int64_t panel, int64_t begin, int64_t end) {
  constexpr int kRows = kFloatAccumulators / kPanels;
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) FloatTileAt<kPanels, kRows, kKind>(a, panel, row);
  for (; row < end; ++row) FloatTileAt<kPanels, 1, kKind>(a, panel, row);
}

template <FloatKind kKind>
static void FloatMatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  int64_t block_rows = (128 << 10) / (a.cols + 1) / kFloatAccumulators * kFloatAccumulators;
  if (block_rows < kFloatAccumulators) block_rows = kFloatAccumulators;
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    int64_t panel = panel_begin;
    if (end - begin < kFloatAccumulators) {  // few rows: stream more panels at once
      for (; panel + 4 <= panel_end; panel += 4) FloatPanels<4, kKind>(a, panel, begin, end);
    }
    for (; panel + 2 <= panel_end; panel += 2) FloatPanels<2, kKind>(a, panel, begin, end);
    for (; panel < panel_end; ++panel) FloatPanels<1, kKind>(a, panel, begin, end);
  }
}
