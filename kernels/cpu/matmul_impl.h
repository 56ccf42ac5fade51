// Matrix products over the abstract vector machine; included by each instruction set's source file inside its own
// namespace, after its vec_*.h and with `using namespace` of it. No include guard on purpose.
//
// Orders (kernels/README.md): integer layouts take the groups of 32 in ascending k, and per group
//   acc = fma(float(isum), d_w * d_x, acc), then acc = fma(min_w, s_x, acc) if the format has minimums;
// float layouts take acc = fma(w, x, acc) in ascending k. Tile sizes change which outputs are computed together, never
// the order within one.

BATON_INLINE void QuantizeGroup(const float* x, int8_t* q, float* d, float* s, int32_t* offset, int32_t* half_offset) {
  const VI magnitude_mask = Set1I(0x7fffffff);
  const VF x0 = Load(x), x1 = Load(x + 16);
  // As integers, magnitudes order like the floats and NaN is above infinity.
  const int32_t amax_bits = ReduceMaxI(MaxI(AndI(Bits(x0), magnitude_mask), AndI(Bits(x1), magnitude_mask)));
  float amax;
  memcpy(&amax, &amax_bits, sizeof amax);
  VI q0 = Set1I(0), q1 = q0;
  if (amax_bits >= 0x7f800000) {
    *d = __builtin_nanf("");  // so that the outputs show it
  } else if (amax < 1e-35f) {
    *d = 0;  // 127 / amax could overflow
  } else {
    *d = amax / 127.0f;
    const VF inverse = Set1(127.0f / amax);
    q0 = Round(Mul(x0, inverse));
    q1 = Round(Mul(x1, inverse));
  }
  StoreBytes(q, q0);
  StoreBytes(q + 16, q1);
  const int32_t sum0 = ReduceAddI(q0), sum1 = ReduceAddI(q1);
  *s = *d * static_cast<float>(sum0 + sum1);
  *offset = -128 * (sum0 + sum1);
  half_offset[0] = -128 * sum0;
  half_offset[1] = -128 * sum1;
}

static void QuantizeRow(const float* x, int64_t row, const QuantizedRows& out) {
  const int64_t groups = out.cols / 32;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t i = row * groups + g;
    QuantizeGroup(x + g * 32, out.q + row * out.cols + g * 32, out.d + i, out.s + i, out.offset + i,
                  out.half_offset + 2 * i);
  }
}

constexpr int kPrefetchBytes = 8192;

enum class ScaleKind { kHalf, kHalfMin, kFloatMin, kPair };

template <int kRows, int kBits, ScaleKind kScale>
BATON_INLINE void IntegerTile(const uint8_t* panel, size_t codes_offset, const QuantizedRows& x, int64_t row, VF* acc) {
  constexpr int kScaleBytes = kScale == ScaleKind::kHalf ? 32 : kScale == ScaleKind::kHalfMin ? 64 : 128;
  constexpr bool kMin = kScale == ScaleKind::kHalfMin || kScale == ScaleKind::kFloatMin;
  const int64_t groups = x.cols / 32;
  const uint8_t* scales = panel;
  const uint8_t* codes = panel + codes_offset;
  const int8_t* q = x.q + row * x.cols;
  const float* d = x.d + row * groups;
  const float* s = x.s + row * groups;
  const int32_t* offset = x.offset + row * groups;
  const int32_t* half_offset = x.half_offset + row * groups * 2;
  for (int r = 0; r < kRows; ++r) acc[r] = Zero();
  const uint8_t* ahead = panel + kPrefetchBytes;
  for (int64_t g = 0; g < groups; ++g, scales += kScaleBytes, codes += kBits * 64, q += 32) {
    if constexpr (kRows <= 2) {
      // With few rows the weights come from memory, faster than the hardware's prefetcher asks for them. Panels follow
      // one another, so this runs on into the next one.
      for (int line = 0; line < kBits * 64 + kScaleBytes; line += 64) __builtin_prefetch(ahead + line);
      ahead += kBits * 64 + kScaleBytes;
    }
    if constexpr (kScale == ScaleKind::kPair) {
      for (int half = 0; half < 2; ++half) {
        VI sum[kRows];
        for (int r = 0; r < kRows; ++r) sum[r] = Set1I(kInt8IsOffset ? half_offset[(r * groups + g) * 2 + half] : 0);
        DotInt8<kRows, 4>(codes + half * 256, q + half * 16, x.cols, sum);
        const VF scale = Load(reinterpret_cast<const float*>(scales + half * 64));
        for (int r = 0; r < kRows; ++r) acc[r] = Fma(ToFloat(sum[r]), Mul(scale, Set1(d[r * groups + g])), acc[r]);
      }
    } else {
      VI sum[kRows];
      if constexpr (kBits == 8) {
        for (int r = 0; r < kRows; ++r) sum[r] = Set1I(kInt8IsOffset ? offset[r * groups + g] : 0);
        DotInt8<kRows, 8>(codes, q, x.cols, sum);
      } else {
        // q4_0's codes carry +8, a sixteenth of 128.
        for (int r = 0; r < kRows; ++r) {
          sum[r] = Set1I(kScale == ScaleKind::kHalf ? offset[r * groups + g] / 16 : 0);
        }
        DotInt4<kRows>(codes, q, x.cols, sum);
      }
      VF scale, minimum;
      if constexpr (kScale == ScaleKind::kFloatMin) {
        scale = Load(reinterpret_cast<const float*>(scales));
        minimum = Load(reinterpret_cast<const float*>(scales + 64));
      } else {
        scale = LoadHalf(scales);
        if constexpr (kMin) minimum = LoadHalf(scales + 32);
      }
      for (int r = 0; r < kRows; ++r) {
        acc[r] = Fma(ToFloat(sum[r]), Mul(scale, Set1(d[r * groups + g])), acc[r]);
        if constexpr (kMin) acc[r] = Fma(minimum, Set1(s[r * groups + g]), acc[r]);
      }
    }
  }
}

BATON_INLINE void StoreTile(const MatMulArgs& a, int64_t panel, int64_t row, int num_rows, const VF* acc) {
  const int64_t first = panel * 16;
  const int n = a.rows - first < 16 ? static_cast<int>(a.rows - first) : 16;
  for (int r = 0; r < num_rows; ++r) {
    float* y = a.y + (row + r) * a.y_stride + first;
    VF value = acc[r];
    if (a.bias != nullptr) value = Add(value, LoadN(a.bias + first, n));
    if (n == 16) {
      Store(y, value);
    } else {
      StoreN(y, value, n);
    }
  }
}

template <int kRows, int kBits, ScaleKind kScale>
BATON_INLINE void IntegerTileAt(const MatMulArgs& a, int64_t panel, int64_t row) {
  VF acc[kRows];
  IntegerTile<kRows, kBits, kScale>(a.panels + panel * a.panel_bytes, a.codes_offset, a.quantized, row, acc);
  StoreTile(a, panel, row, kRows, acc);
}

template <int kBits, ScaleKind kScale>
static void IntegerMatMul(const MatMulArgs& a, int64_t panel_begin, int64_t panel_end) {
  // A block of activation rows stays in the second-level cache while all panels pass over it.
  int64_t block_rows = (512 << 10) / (a.cols + 1) / kTileRows * kTileRows;
  if (block_rows < kTileRows) block_rows = kTileRows;
  for (int64_t begin = 0; begin < a.m; begin += block_rows) {
    const int64_t end = begin + block_rows < a.m ? begin + block_rows : a.m;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      int64_t row = begin;
      for (; row + kTileRows <= end; row += kTileRows) IntegerTileAt<kTileRows, kBits, kScale>(a, panel, row);
      for (; row + 4 <= end; row += 4) IntegerTileAt<4, kBits, kScale>(a, panel, row);
      for (; row + 2 <= end; row += 2) IntegerTileAt<2, kBits, kScale>(a, panel, row);
      if (row < end) IntegerTileAt<1, kBits, kScale>(a, panel, row);
    }
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
