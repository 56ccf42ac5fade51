// Where all products end; included like matmul_impl.h, before it.

// num_rows outputs of each of the 16 lanes of a panel.
template <bool kFlushed = false>
BATON_INLINE void StoreTile(const MatMulArgs& a, int64_t panel, int64_t row, int num_rows, const VF* acc) {
  const int64_t first = panel * 16;
  const int n = a.rows - first < 16 ? static_cast<int>(a.rows - first) : 16;
  for (int r = 0; r < num_rows; ++r) {
    float* y = a.y + (row + r) * a.y_stride + (first - a.first_column);
    VF value = acc[r];
    if (a.bias != nullptr) {
      const VF bias = LoadN(a.bias + first, n);
      value = kFlushed ? AddFlushed(value, bias) : Add(value, bias);
    }
    if (n == 16) {
      Store(y, value);
    } else {
      StoreN(y, value, n);
    }
  }
}
