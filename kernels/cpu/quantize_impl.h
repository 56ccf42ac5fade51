// Quantization of activations over the abstract vector machine; included like matmul_impl.h, before it.

// Where row `row` of the batch lies (QuantizedRows): its block's first cell, the block's rows, the row in the block.
struct ActivationBlock {
  uint8_t* cells;
  int64_t rows;
};

BATON_INLINE ActivationBlock BlockOfRow(const QuantizedRows& x, int64_t row) {
  const int64_t first = row / kActivationBlockRows * kActivationBlockRows;
  const int64_t left = x.rows - first;
  return {x.cells + first * (x.cols / 32) * kActivationCellBytes,
          left < kActivationBlockRows ? left : kActivationBlockRows};
}

// The arrays of one cell from row `row` of its block on.
struct ActivationCell {
  int8_t* q;
  float* d;
  float* s;
  int32_t* offset;
  int32_t* half_offset;
};

BATON_INLINE ActivationCell CellAt(uint8_t* cell, int64_t block_rows, int64_t row) {
  return {reinterpret_cast<int8_t*>(cell) + row * 32, reinterpret_cast<float*>(cell + block_rows * 32) + row,
          reinterpret_cast<float*>(cell + block_rows * 36) + row,
          reinterpret_cast<int32_t*>(cell + block_rows * 40) + row,
          reinterpret_cast<int32_t*>(cell + block_rows * 44) + row * 2};
}

BATON_INLINE void QuantizeGroup(const float* x, const ActivationCell& out) {
  const VI magnitude_mask = Set1I(0x7fffffff);
  const VF x0 = Load(x), x1 = Load(x + 16);
  // As integers, magnitudes order like the floats and NaN is above infinity.
  const int32_t amax_bits = ReduceMaxI(MaxI(AndI(Bits(x0), magnitude_mask), AndI(Bits(x1), magnitude_mask)));
  float amax;
  memcpy(&amax, &amax_bits, sizeof amax);
  VI q0 = Set1I(0), q1 = q0;
  if (amax_bits >= 0x7f800000) {
    *out.d = __builtin_nanf("");  // so that the outputs show it
  } else if (amax < 1e-35f) {
    *out.d = 0;  // 127 / amax could overflow
  } else {
    *out.d = amax / 127.0f;
    const VF inverse = Set1(127.0f / amax);
    q0 = Round(Mul(x0, inverse));
    q1 = Round(Mul(x1, inverse));
  }
  StoreBytes(out.q, q0);
  StoreBytes(out.q + 16, q1);
  const int32_t sum0 = ReduceAddI(q0), sum1 = ReduceAddI(q1);
  *out.s = *out.d * static_cast<float>(sum0 + sum1);
  *out.offset = -128 * (sum0 + sum1);
  out.half_offset[0] = -128 * sum0;
  out.half_offset[1] = -128 * sum1;
}

// The largest of the 16 lanes of m[i], for each i; overwrites m.
BATON_INLINE VI RowMaxI(VF* m) {
  Transpose16(m);
  VI r = Bits(m[0]);
  for (int i = 1; i < 16; ++i) r = MaxI(r, Bits(m[i]));
  return r;
}
// The sum of the 16 lanes of m[i], for each i; overwrites m.
BATON_INLINE VI RowSumI(VF* m) {
  Transpose16(m);
  VI r = Bits(m[0]);
  for (int i = 1; i < 16; ++i) r = AddI(r, Bits(m[i]));
  return r;
}

// 16 groups at once: their lanes are divided, summed and stored together. False, having written nothing, if a value is
// not finite.
BATON_INLINE bool QuantizeSixteen(const float* x, uint8_t* cell, int64_t cell_bytes, int64_t block_rows, int64_t row) {
  const VI magnitude_mask = Set1I(0x7fffffff);
  VF m[16];
  for (int g = 0; g < 16; ++g) {
    m[g] = FromBits(MaxI(AndI(Bits(Load(x + g * 32)), magnitude_mask), AndI(Bits(Load(x + g * 32 + 16)), magnitude_mask)));
  }
  const VI amax_bits = RowMaxI(m);
  if (ReduceMaxI(amax_bits) >= 0x7f800000) return false;
  const VF amax = FromBits(amax_bits), tiny = Set1(1e-35f), most = Set1(127.0f);
  const VF d = SelectLess(amax, tiny, Zero(), Div(amax, most));
  alignas(64) float inverse[16], d_of[16], s_of[16];
  alignas(64) int32_t sum_of[16];
  Store(inverse, SelectLess(amax, tiny, Zero(), Div(most, SelectLess(amax, tiny, most, amax))));
  for (int g = 0; g < 16; ++g) {
    const VF by = Set1(inverse[g]);
    const VI q0 = Round(Mul(Load(x + g * 32), by)), q1 = Round(Mul(Load(x + g * 32 + 16), by));
    int8_t* const q = CellAt(cell + g * cell_bytes, block_rows, row).q;
    StoreBytes(q, q0);
    StoreBytes(q + 16, q1);
    m[g] = FromBits(AddI(q0, ShiftLeft16(q1)));  // both sums at once; each stays within 16 * 127
  }
  const VI sums = RowSumI(m);
  const VI sum0 = ShiftRight16(ShiftLeft16(sums)), sum1 = ShiftRight16(SubI(sums, sum0));
  Store(d_of, d);
  Store(s_of, Mul(d, ToFloat(AddI(sum0, sum1))));
  StoreI(sum_of, AddI(ShiftLeft16(sum1), AndI(sum0, Set1I(0xffff))));
  for (int g = 0; g < 16; ++g) {
    const ActivationCell out = CellAt(cell + g * cell_bytes, block_rows, row);
    const int32_t first = static_cast<int16_t>(sum_of[g]), second = sum_of[g] >> 16;
    *out.d = d_of[g];
    *out.s = s_of[g];
    *out.offset = -128 * (first + second);
    out.half_offset[0] = -128 * first;
    out.half_offset[1] = -128 * second;
  }
  return true;
}

static void QuantizeRow(const float* x, int64_t row, int64_t begin, int64_t end, const QuantizedRows& out) {
  const ActivationBlock block = BlockOfRow(out, row);
  const int64_t cell_bytes = block.rows * kActivationCellBytes;
  const int64_t row_in_block = row % kActivationBlockRows;
  uint8_t* cell = block.cells + begin / 32 * cell_bytes;
  int64_t left = (end - begin) / 32;
  for (; left >= 16; left -= 16, x += 512, cell += 16 * cell_bytes) {
    if (QuantizeSixteen(x, cell, cell_bytes, block.rows, row_in_block)) continue;
    for (int i = 0; i < 16; ++i) QuantizeGroup(x + i * 32, CellAt(cell + i * cell_bytes, block.rows, row_in_block));
  }
  for (; left > 0; --left, x += 32, cell += cell_bytes) QuantizeGroup(x, CellAt(cell, block.rows, row_in_block));
}
