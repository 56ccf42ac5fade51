// Attention of one KV head over the abstract vector machine; see matmul_impl.h for how it is included.
//
// Orders: keys in tiles of 32 that start at multiples of 32 of the absolute position, so that a row's result does not
// depend on how the prompt was chunked. score = fma over ascending dimension; per tile the running maximum, sum (in 16
// lanes, key j in lane j % 16) and output are rescaled if the maximum grew; output[d] = fma over ascending key. Tiles
// and keys that a row does not see do not enter its arithmetic at all.

struct AttentionState {
  int head_dim, padded_dim;
  float* keys;     // [padded_dim][32], transposed
  float* values;   // [32][padded_dim]
  float* queries;  // [query][padded_dim], scaled
  float* output;   // [query][padded_dim]
  float* weights;  // [query][32] of the current tile
  float* sums;     // [query][16]
  float* maxima;   // [query]
};

template <DType kDType>
BATON_INLINE VF LoadKv16(const std::byte* p) {
  if constexpr (kDType == DType::kF32) return Load(reinterpret_cast<const float*>(p));
  if constexpr (kDType == DType::kF16) return LoadHalf(p);
  if constexpr (kDType == DType::kBF16) return LoadBf16(p);
}

// The last n < 16 elements of a head; does not read past them.
template <DType kDType>
static VF LoadKvTail(const std::byte* p, int n) {
  std::byte buffer[64] = {};
  memcpy(buffer, p, n * (kDType == DType::kF32 ? 4 : 2));
  return LoadKv16<kDType>(buffer);
}

template <DType kDType>
BATON_INLINE VF LoadKvN(const std::byte* row, int d, int head_dim) {
  constexpr int kBytes = kDType == DType::kF32 ? 4 : 2;
  return d + 16 <= head_dim ? LoadKv16<kDType>(row + d * kBytes) : LoadKvTail<kDType>(row + d * kBytes, head_dim - d);
}

// Brings positions [begin, end) of the tile at `tile` into keys and values, as floats. Other slots become zero.
template <DType kDType>
static void LoadTile(const AttentionArgs& a, const AttentionState& st, int tile, int begin, int end) {
  constexpr int kBytes = kDType == DType::kF32 ? 4 : 2;
  const std::byte* rows[kKeyTile];
  for (int j = 0; j < kKeyTile; ++j) {
    const int position = tile + j;
    rows[j] = nullptr;
    if (position < begin || position >= end) continue;
    rows[j] = a.kv_base + static_cast<size_t>(a.block_table[position / a.block_size]) * a.block_bytes +
              static_cast<size_t>(position % a.block_size) * a.head_dim * kBytes;
  }
  for (int group = 0; group < kKeyTile; group += 16) {
    for (int d = 0; d < st.padded_dim; d += 16) {
      VF m[16];
      for (int j = 0; j < 16; ++j) {
        const std::byte* row = rows[group + j];
        m[j] = row == nullptr ? Zero() : LoadKvN<kDType>(row + a.k_offset, d, a.head_dim);
      }
      Transpose16(m);
      for (int i = 0; i < 16; ++i) Store(st.keys + (d + i) * kKeyTile + group, m[i]);
    }
  }
  for (int j = 0; j < kKeyTile; ++j) {
    if (rows[j] == nullptr) continue;  // never read
    float* value = st.values + j * st.padded_dim;
    for (int d = 0; d < st.padded_dim; d += 16) Store(value + d, LoadKvN<kDType>(rows[j] + a.v_offset, d, a.head_dim));
  }
}

// scores[r][32] of kCount queries with the tile's keys.
template <int kCount>
BATON_INLINE void Scores(const AttentionState& st, int query) {
  VF acc[kCount][2];
  for (int r = 0; r < kCount; ++r) acc[r][0] = acc[r][1] = Zero();
  const float* q = st.queries + query * st.padded_dim;
  for (int d = 0; d < st.head_dim; ++d) {
    const VF k0 = Load(st.keys + d * kKeyTile), k1 = Load(st.keys + d * kKeyTile + 16);
    for (int r = 0; r < kCount; ++r) {
      const VF value = Set1(q[r * st.padded_dim + d]);
      acc[r][0] = Fma(k0, value, acc[r][0]);
      acc[r][1] = Fma(k1, value, acc[r][1]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    Store(st.weights + (query + r) * kKeyTile, acc[r][0]);
    Store(st.weights + (query + r) * kKeyTile + 16, acc[r][1]);
  }
}

BATON_INLINE VF SoftCap(VF score, float cap) {
  return cap > 0 ? Mul(Set1(cap), Tanh(Mul(score, Set1(1.0f / cap)))) : score;
}

// Turns the scores of one query into weights over the visible slots [begin, end) and rescales what it has so far.
BATON_INLINE void SoftmaxStep(const AttentionArgs& a, const AttentionState& st, int query, int begin, int end) {
  float* weights = st.weights + query * kKeyTile;
  VF s0 = SoftCap(Load(weights), a.logit_softcap), s1 = SoftCap(Load(weights + 16), a.logit_softcap);
  const VF hidden = Set1(-__builtin_inff());
  s0 = SelectRange(begin, end, s0, hidden);
  s1 = SelectRange(begin - 16, end - 16, s1, hidden);
  const float tile_max = ReduceMax(Max(s0, s1));
  const float old_max = st.maxima[query];
  const float new_max = tile_max > old_max ? tile_max : old_max;
  VF sum = Load(st.sums + query * 16);
  if (new_max != old_max) {
    const VF factor = Exp(Set1(old_max - new_max));
    sum = Mul(sum, factor);
    float* output = st.output + query * st.padded_dim;
    for (int d = 0; d < st.padded_dim; d += 16) Store(output + d, Mul(Load(output + d), factor));
    st.maxima[query] = new_max;
  }
  const VF p0 = Exp(Sub(s0, Set1(new_max))), p1 = Exp(Sub(s1, Set1(new_max)));
  Store(st.sums + query * 16, Add(Add(sum, p0), p1));
  Store(weights, p0);
  Store(weights + 16, p1);
}

// output += weights * values of kCount queries that see the same slots.
template <int kCount, int kVectors>
BATON_INLINE void Accumulate(const AttentionState& st, int query, int begin, int end, int d) {
  VF acc[kCount][kVectors];
  float* output = st.output + query * st.padded_dim + d;
  const float* weights = st.weights + query * kKeyTile;
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kVectors; ++i) acc[r][i] = Load(output + r * st.padded_dim + i * 16);
  }
  for (int j = begin; j < end; ++j) {
    const float* value = st.values + j * st.padded_dim + d;
    for (int i = 0; i < kVectors; ++i) {
      const VF v = Load(value + i * 16);
      for (int r = 0; r < kCount; ++r) acc[r][i] = Fma(v, Set1(weights[r * kKeyTile + j]), acc[r][i]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kVectors; ++i) Store(output + r * st.padded_dim + i * 16, acc[r][i]);
  }
}

template <int kCount>
BATON_INLINE void AccumulateRows(const AttentionState& st, int query, int begin, int end) {
  int d = 0;
  for (; d + kValueVectors * 16 <= st.padded_dim; d += kValueVectors * 16) {
    Accumulate<kCount, kValueVectors>(st, query, begin, end, d);
  }
  for (; d < st.padded_dim; d += 16) Accumulate<kCount, 1>(st, query, begin, end, d);
}

// Positions that the row at `position` sees are [VisibleBegin, position].
BATON_INLINE int VisibleBegin(const AttentionArgs& a, int position) {
  return a.sliding_window > 0 && position >= a.sliding_window ? position - a.sliding_window + 1 : 0;
}

static void ProcessTile(const AttentionArgs& a, const AttentionState& st, int tile, int num_queries) {
  int query = 0;
  for (; query + kScoreRows <= num_queries; query += kScoreRows) Scores<kScoreRows>(st, query);
  for (; query + 2 <= num_queries; query += 2) Scores<2>(st, query);
  if (query < num_queries) Scores<1>(st, query);

  int begins[kMaxAttentionQueries], ends[kMaxAttentionQueries];
  for (query = 0; query < num_queries; ++query) {
    const int position = a.first_position + query / a.num_heads;
    const int visible = VisibleBegin(a, position) - tile;
    begins[query] = visible > 0 ? visible : 0;
    ends[query] = position + 1 - tile < kKeyTile ? position + 1 - tile : kKeyTile;
    if (begins[query] < ends[query]) SoftmaxStep(a, st, query, begins[query], ends[query]);
  }
  for (query = 0; query < num_queries;) {
    const int begin = begins[query], end = ends[query];
    int same = 1;
    while (same < kValueRows && query + same < num_queries && begins[query + same] == begin &&
           ends[query + same] == end) {
      ++same;
    }
    if (begin < end && same == kValueRows) {
      AccumulateRows<kValueRows>(st, query, begin, end);
      query += kValueRows;
    } else {
      if (begin < end) AccumulateRows<1>(st, query, begin, end);
      ++query;
    }
  }
}

static void AttentionHead(const AttentionArgs& a) {
  const int num_queries = (a.row_end - a.row_begin) * a.num_heads;
  AttentionState st;
  st.head_dim = a.head_dim;
  st.padded_dim = (a.head_dim + 15) / 16 * 16;
  st.keys = a.scratch;
  st.values = st.keys + kKeyTile * st.padded_dim;
  st.queries = st.values + kKeyTile * st.padded_dim;
  st.output = st.queries + kMaxAttentionQueries * st.padded_dim;
  st.weights = st.output + kMaxAttentionQueries * st.padded_dim;
  st.sums = st.weights + kMaxAttentionQueries * kKeyTile;
  st.maxima = st.sums + kMaxAttentionQueries * 16;
  for (int query = 0; query < num_queries; ++query) {
    const float* q = a.q + (a.row_begin + query / a.num_heads) * a.q_stride + query % a.num_heads * a.head_dim;
    for (int d = 0; d < st.padded_dim; d += 16) {
      const VF value = d + 16 <= a.head_dim ? Load(q + d) : LoadN(q + d, a.head_dim - d);
      Store(st.queries + query * st.padded_dim + d, Mul(value, Set1(a.scale)));
      Store(st.output + query * st.padded_dim + d, Zero());
    }
    Store(st.sums + query * 16, Zero());
    st.maxima[query] = -__builtin_inff();
  }

  const int first = VisibleBegin(a, a.first_position);
  const int end = a.first_position + (a.row_end - a.row_begin);
  for (int tile = first / kKeyTile * kKeyTile; tile < end; tile += kKeyTile) {
    switch (a.dtype) {
      case DType::kF32:
        LoadTile<DType::kF32>(a, st, tile, first, end);
        break;
      case DType::kBF16:
        LoadTile<DType::kBF16>(a, st, tile, first, end);
        break;
      default:
        LoadTile<DType::kF16>(a, st, tile, first, end);
        break;
    }
    ProcessTile(a, st, tile, num_queries);
  }

  for (int query = 0; query < num_queries; ++query) {
    float* out = a.out + (a.row_begin + query / a.num_heads) * a.out_stride + query % a.num_heads * a.head_dim;
    const VF inverse = Set1(1.0f / ReduceAdd(Load(st.sums + query * 16)));
    for (int d = 0; d < st.padded_dim; d += 16) {
      const VF value = Mul(Load(st.output + query * st.padded_dim + d), inverse);
      if (d + 16 <= a.head_dim) {
        Store(out + d, value);
      } else {
        StoreN(out + d, value, a.head_dim - d);
      }
    }
  }
}
