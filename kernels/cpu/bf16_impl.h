// Products of the class kBf16 over the abstract vector machine; included like matmul_impl.h, after it.
//
// Definition (kernels/README.md): activations are rounded to bfloat16, and for each pair of k in ascending order
//   acc = fma(w[k + 1], x[k + 1], acc), then acc = fma(w[k], x[k], acc)
// with denormal operands and results taken as zero: what vdpbf16ps does. FmaFlushed is that step.

// Activations as FmaFlushed reads them: blocks of 16 rows as in QuantizedRows, in a block for each pair of k, for each
// row, two floats.
static void RoundRow(const float* x, int64_t row, int64_t begin, int64_t end, const RoundedRows& out) {
  const int64_t first = row / kActivationBlockRows * kActivationBlockRows;
  const int64_t left = out.rows - first;
  const int64_t block_rows = left < kActivationBlockRows ? left : kActivationBlockRows;
  const int64_t pairs = (out.cols + 1) / 2;
  uint8_t* at = out.pairs + (first * pairs + begin / 2 * block_rows + row - first) * kPairBytes;
  const int64_t n = end - begin;
  for (int64_t i = 0; i < n; i += 2, at += block_rows * kPairBytes) {
    const float value[2] = {x[i], i + 1 < n ? x[i + 1] : 0.0f};
    StorePair(at, value);
  }
}

// kPanels panels side by side in one super-panel, kRows rows in one block.
template <int kPanels, int kRows>
static void Bf16Tile(const MatMulArgs& a, int64_t panel, int64_t row, int64_t ahead) {
  const int64_t num_panels = (a.rows + 15) / 16, pairs = (a.cols + 1) / 2;
  const int64_t super = panel / kSuperPanels * kSuperPanels;
  const int64_t left = num_panels - super;
  const int64_t step = (left < kSuperPanels ? left : kSuperPanels) * 64;
  const uint8_t* w = a.panels + super * a.panel_bytes + (panel - super) * 64;
  const int64_t first = row / kActivationBlockRows * kActivationBlockRows;
  const int64_t rows_left = a.rounded.rows - first;
  const int64_t x_step = (rows_left < kActivationBlockRows ? rows_left : kActivationBlockRows) * kPairBytes;
  const uint8_t* x = a.rounded.pairs + (first * pairs + row - first) * kPairBytes;
  VF acc[kPanels][kRows];
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) acc[p][r] = Zero();
  }
  for (int64_t pair = 0; pair < pairs; ++pair, w += step, x += x_step) {
    if (ahead > 0) {
      for (int p = 0; p < kPanels; ++p) __builtin_prefetch(w + ahead + p * 64);
    }
    PairStep<kPanels, kRows>(w, x, acc);
  }
  for (int p = 0; p < kPanels; ++p) StoreTile<true>(a, panel + p, row, kRows, acc[p]);
}

template <int kPanels>
BATON_INLINE void Bf16Rows(const MatMulArgs& a, int64_t panel, int64_t begin, int64_t end, int64_t ahead) {
  for (int64_t row = begin; row < end; ahead = 0) {
    const int64_t left = end - row;
    if constexpr (kPanels <= 2) {
      if (left >= kTileRows) {
        Bf16Tile<kPanels, kTileRows>(a, panel, row, ahead);
        row += kTileRows;
        continue;
      }
    }
    if (left >= 4) {
      Bf16Tile<kPanels, 4>(a, panel, row, ahead);
      row += 4;
    } else if (left >= 2) {
      Bf16Tile<kPanels, 2>(a, panel, row, ahead);
      row += 2;
    } else {
      Bf16Tile<kPanels, 1>(a, panel, row, ahead);
      row += 1;
    }
  }
}

// Not inlined: nothing of it may move out of the scope in which denormals are flushed.
__attribute__((noinline)) static void Bf16Panels(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  constexpr int kUnit = kActivationBlockRows;
  int64_t block_rows = kActivationCacheBytes / ((a.cols + 1) / 2 * kPairBytes) / kUnit * kUnit;
  if (block_rows < kUnit) block_rows = kUnit;
  const int64_t super_bytes = kSuperPanels * static_cast<int64_t>(a.panel_bytes);
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    int64_t panel = panel_begin;
    if (a.m <= kFewRows) {  // one stream of memory, in order
      for (; panel % kSuperPanels == 0 && panel + kSuperPanels <= panel_end; panel += kSuperPanels) {
        Bf16Rows<kSuperPanels>(a, panel, begin, end, kAheadBytes);
      }
    }
    for (; panel + 2 <= panel_end && panel % kSuperPanels + 2 <= kSuperPanels; panel += 2) {
      Bf16Rows<2>(a, panel, begin, end, a.m <= kFewRows ? kAheadBytes : super_bytes);
    }
    for (; panel < panel_end; ++panel) Bf16Rows<1>(a, panel, begin, end, kAheadBytes);
  }
}

static void Bf16MatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  const FlushScope scope;
  Bf16Panels(a, panel_begin, panel_end);
}
