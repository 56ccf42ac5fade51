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

static void QuantizeRow(const float* x, int64_t row, const QuantizedRows& out) {
  const ActivationBlock block = BlockOfRow(out, row);
  const int64_t cell_bytes = block.rows * kActivationCellBytes;
  for (int64_t g = 0; g < out.cols / 32; ++g) {
    QuantizeGroup(x + g * 32, CellAt(block.cells + g * cell_bytes, block.rows, row % kActivationBlockRows));
  }
}
