// Attention of one KV head over the abstract vector machine; see matmul_impl.h for how it is included.
//
// Orders: keys in tiles of 64 that start at multiples of 64 of the absolute position, and pieces of 512 likewise, so that
// a row's result does not depend on how the prompt was chunked or which thread had which piece. score = fma over
// ascending dimension; per tile the running maximum, sum (in 16 lanes, key j in lane j % 16) and output are rescaled if
// the maximum grew; output[d] = fma over ascending key. Each piece starts afresh, and pieces are merged in ascending
// order. Tiles and keys that a row does not see do not enter its arithmetic at all.

struct SoftmaxState {
  float* output;  // [query][padded_dim]
  float* sums;    // [query][16]
  float* maxima;  // [query]
};

struct AttentionState {
  int head_dim, padded_dim;
  float* keys;      // [padded_dim][kKeyTile], transposed
  float* values;    // [kKeyTile][padded_dim]
  float* queries;   // [query][padded_dim], scaled
  float* weights;   // [kScoreRows][kKeyTile], of the queries at hand and the current tile
  SoftmaxState piece, total;
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

// Token j of the tile is at rows[j] (plus k_offset or v_offset); `outside` if it is not in [begin, end).
template <DType kDType>
static void FindRows(const AttentionArgs& a, int tile, int begin, int end, const std::byte* outside,
                     const std::byte** rows) {
  constexpr int kBytes = kDType == DType::kF32 ? 4 : 2;
  const size_t row_bytes = static_cast<size_t>(a.head_dim) * kBytes;
  int block = tile / a.block_size, slot = tile % a.block_size;
  for (int j = 0; j < kKeyTile; ++j) {
    const int position = tile + j;
    rows[j] = position < begin || position >= end
                  ? outside
                  : a.kv_base + static_cast<size_t>(a.block_table[block]) * a.block_bytes + slot * row_bytes;
    if (++slot == a.block_size) {
      slot = 0;
      ++block;
    }
  }
}

// The tile's first `groups` times 16 keys, as floats; slots without a row become zero. With few queries, each step also
// asks for the same keys of the tile after it, whose rows are `next`: blocks lie anywhere, so the hardware does not guess
// where they are, and asked for all at once they would keep the processor waiting.
template <bool kAhead, DType kDType>
static void LoadKeys(const AttentionArgs& a, const AttentionState& st, const std::byte* const* rows,
                     const std::byte* const* next, int groups) {
  for (int group = 0; group < groups * 16; group += 16) {
    int d = 0;
    const auto ask_ahead = [&] {
      if constexpr (!kAhead) return;
      const size_t offset = a.k_offset + d * (kDType == DType::kF32 ? 4 : 2);
      for (int j = 0; j < 16; ++j) __builtin_prefetch(next[group + j] + offset, 0, 2);
    };
    if constexpr (kDType == DType::kF16) {
      for (; d + 32 <= a.head_dim; d += 32) {
        ask_ahead();
        TransposeHalves(rows + group, a.k_offset + d * 2, st.keys + d * kKeyTile + group, kKeyTile);
      }
    }
    for (; d < st.padded_dim; d += 16) {
      ask_ahead();
      VF m[16];
      for (int j = 0; j < 16; ++j) {
        const std::byte* row = rows[group + j];
        m[j] = row == nullptr ? Zero() : LoadKvN<kDType>(row + a.k_offset, d, a.head_dim);
      }
      Transpose16(m);
      for (int i = 0; i < 16; ++i) Store(st.keys + (d + i) * kKeyTile + group, m[i]);
    }
  }
}

template <DType kDType>
static void LoadValues(const AttentionArgs& a, const AttentionState& st, const std::byte* const* rows) {
  for (int j = 0; j < kKeyTile; ++j) {
    if (rows[j] == nullptr) continue;  // never read
    float* value = st.values + j * st.padded_dim;
    for (int d = 0; d < st.padded_dim; d += 16) Store(value + d, LoadKvN<kDType>(rows[j] + a.v_offset, d, a.head_dim));
  }
}

// weights[r][key] = scores of kCount queries from `query` on with kVectors groups of the tile's keys from `group` on.
template <int kCount, int kVectors>
BATON_INLINE void Scores(const AttentionState& st, int query, int group) {
  VF acc[kCount][kVectors];
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kVectors; ++i) acc[r][i] = Zero();
  }
  const float* q = st.queries + query * st.padded_dim;
  const float* keys = st.keys + group * 16;
  for (int d = 0; d < st.head_dim; ++d) {
    VF k[kVectors];
    for (int i = 0; i < kVectors; ++i) k[i] = Load(keys + d * kKeyTile + i * 16);
    for (int r = 0; r < kCount; ++r) {
      const VF value = Set1(q[r * st.padded_dim + d]);
      for (int i = 0; i < kVectors; ++i) acc[r][i] = Fma(k[i], value, acc[r][i]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kVectors; ++i) Store(st.weights + r * kKeyTile + (group + i) * 16, acc[r][i]);
  }
}

// Of count <= kCount queries. May compute groups past `groups`; nobody reads them.
template <int kCount>
static void ScoresUpTo(const AttentionState& st, int query, int count, int groups) {
  if constexpr (kCount > 0) {
    if (count < kCount) return ScoresUpTo<kCount - 1>(st, query, count, groups);
    if (groups == 1) return Scores<kCount, 1>(st, query, 0);
    if (groups == 2 && kScoreVectors > 2) return Scores<kCount, 2>(st, query, 0);
    for (int group = 0; group < groups; group += kScoreVectors) Scores<kCount, kScoreVectors>(st, query, group);
  }
}

BATON_INLINE VF SoftCap(VF score, float cap) {
  return cap > 0 ? Mul(Set1(cap), Tanh(Mul(score, Set1(1.0f / cap)))) : score;
}

// Turns the scores of one query into weights over the visible slots [begin, end) of the tile's first kGroups times 16,
// and rescales what it has so far. The keys of further groups are hidden.
template <int kGroups>
BATON_INLINE void SoftmaxStep(const AttentionArgs& a, const AttentionState& st, float* weights, int query, int begin,
                              int end) {
  VF score[kGroups];
  for (int g = 0; g < kGroups; ++g) score[g] = SoftCap(Load(weights + g * 16), a.logit_softcap);
  if (begin > 0 || end < kGroups * 16) {
    const VF hidden = Set1(-__builtin_inff());
    for (int g = 0; g < kGroups; ++g) score[g] = SelectRange(begin - g * 16, end - g * 16, score[g], hidden);
  }
  VF largest = score[0];
  for (int g = 1; g < kGroups; ++g) largest = Max(largest, score[g]);
  const float tile_max = ReduceMax(largest);
  const float old_max = st.piece.maxima[query];
  const float new_max = tile_max > old_max ? tile_max : old_max;
  float* sums = st.piece.sums + query * 16;
  VF sum = Load(sums);
  if (new_max != old_max) {
    const VF factor = ExpNotPositive(Set1(old_max - new_max));
    sum = Mul(sum, factor);
    float* output = st.piece.output + query * st.padded_dim;
    for (int d = 0; d < st.padded_dim; d += 16) Store(output + d, Mul(Load(output + d), factor));
    st.piece.maxima[query] = new_max;
  }
  const VF shift = Set1(new_max);
  for (int g = 0; g < kGroups; ++g) {
    const VF weight = ExpNotPositive(Sub(score[g], shift));
    sum = Add(sum, weight);
    Store(weights + g * 16, weight);
  }
  Store(sums, sum);
}

BATON_INLINE void SoftmaxGroups(const AttentionArgs& a, const AttentionState& st, float* weights, int query, int begin,
                                int end) {
  switch ((end + 15) / 16) {
    case 1:
      return SoftmaxStep<1>(a, st, weights, query, begin, end);
    case 2:
      return SoftmaxStep<2>(a, st, weights, query, begin, end);
    case 3:
      return SoftmaxStep<3>(a, st, weights, query, begin, end);
    default:
      return SoftmaxStep<4>(a, st, weights, query, begin, end);
  }
}

// output += weights * values, dimensions from d on, of kCount queries that see the same slots [begin, end). kDirect: the
// values are converted on the way instead of taken from st.values, which pays for few queries; those of the next tile are
// asked for.
template <int kCount, int kVectors, bool kDirect, DType kDType>
BATON_INLINE void Accumulate(const AttentionArgs& a, const AttentionState& st, const std::byte* const* rows,
                             const std::byte* const* next, int query, const float* weights, int begin, int end, int d) {
  constexpr int kBytes = kDType == DType::kF32 ? 4 : 2;
  VF acc[kCount][kVectors];
  float* output = st.piece.output + query * st.padded_dim + d;
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) acc[r][i] = Load(output + r * st.padded_dim + i * 16);
  }
  for (int j = begin; j < end; ++j) {
    VF v[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (!kDirect) {
        v[i] = Load(st.values + j * st.padded_dim + d + i * 16);
      } else if constexpr (kVectors == 1) {  // perhaps the tail
        v[i] = LoadKvN<kDType>(rows[j] + a.v_offset, d, a.head_dim);
      } else {
        v[i] = LoadKv16<kDType>(rows[j] + a.v_offset + (d + i * 16) * kBytes);
      }
    }
    if constexpr (kDirect) {
#pragma GCC unroll 4
      for (int byte = 0; byte < kVectors * 16 * kBytes; byte += 64) {
        __builtin_prefetch(next[j] + a.v_offset + d * kBytes + byte, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const VF weight = Set1(weights[r * kKeyTile + j]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) acc[r][i] = Fma(v[i], weight, acc[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) Store(output + r * st.padded_dim + i * 16, acc[r][i]);
  }
}

template <int kCount, bool kDirect, DType kDType>
static void AccumulateUpTo(const AttentionArgs& a, const AttentionState& st, const std::byte* const* rows,
                           const std::byte* const* next, int query, int count, const float* weights, int begin,
                           int end) {
  if constexpr (kCount > 0) {
    if (count < kCount) {
      return AccumulateUpTo<kCount - 1, kDirect, kDType>(a, st, rows, next, query, count, weights, begin, end);
    }
    int d = 0;
    for (; d + kValueVectors * 16 <= a.head_dim; d += kValueVectors * 16) {
      Accumulate<kCount, kValueVectors, kDirect, kDType>(a, st, rows, next, query, weights, begin, end, d);
    }
    for (; d < st.padded_dim; d += 16) {
      Accumulate<kCount, 1, kDirect, kDType>(a, st, rows, next, query, weights, begin, end, d);
    }
  }
}

// Positions that the row at `position` sees are [VisibleBegin, position].
BATON_INLINE int VisibleBegin(const AttentionArgs& a, int position) {
  return a.sliding_window > 0 && position >= a.sliding_window ? position - a.sliding_window + 1 : 0;
}

// The slots of the tile that a query sees; none if begin >= end.
struct Visible {
  int begin, end;
};
BATON_INLINE Visible VisibleSlots(const AttentionArgs& a, int query, int tile) {
  const int position = a.first_position + query / a.num_heads;
  const int begin = VisibleBegin(a, position) - tile, end = position + 1 - tile;
  return {begin > 0 ? begin : 0, end < kKeyTile ? end : kKeyTile};
}

// The queries from `query` on, all of which see something of the tile, with the tile's keys.
template <bool kDirect, DType kDType>
BATON_INLINE void ProcessQueries(const AttentionArgs& a, const AttentionState& st, const std::byte* const* rows,
                                 const std::byte* const* next, int query, int count, int tile) {
  Visible visible[kScoreRows];
  int end = 0;
  for (int i = 0; i < count; ++i) {
    visible[i] = VisibleSlots(a, query + i, tile);
    if (visible[i].end > end) end = visible[i].end;
  }
  ScoresUpTo<kScoreRows>(st, query, count, (end + 15) / 16);
  for (int i = 0; i < count; ++i) {
    SoftmaxGroups(a, st, st.weights + i * kKeyTile, query + i, visible[i].begin, visible[i].end);
  }
  for (int i = 0; i < count;) {
    int same = 1;
    while (same < kValueRows && i + same < count && visible[i + same].begin == visible[i].begin &&
           visible[i + same].end == visible[i].end) {
      ++same;
    }
    AccumulateUpTo<kValueRows, kDirect, kDType>(a, st, rows, next, query + i, same, st.weights + i * kKeyTile,
                                                visible[i].begin, visible[i].end);
    i += same;
  }
}

template <DType kDType>
static void ProcessTile(const AttentionArgs& a, const AttentionState& st, int tile, int first, int end,
                        int num_queries) {
  const std::byte* rows[kKeyTile];
  FindRows<kDType>(a, tile, first, end, nullptr, rows);
  const std::byte* next[kKeyTile];
  const int last = end - tile < kKeyTile ? end - tile : kKeyTile;
  const bool direct = num_queries <= kValueRows;
  if (direct) {
    FindRows<kDType>(a, tile + kKeyTile, first, end, rows[last - 1], next);  // rows that there are not: one at hand
    LoadKeys<true, kDType>(a, st, rows, next, (last + 15) / 16);
  } else {
    LoadKeys<false, kDType>(a, st, rows, nullptr, (last + 15) / 16);
    LoadValues<kDType>(a, st, rows);
  }
  // Those that see something are a run: early rows end before the tile, and windows of late ones begin after it.
  int query = 0;
  while (query < num_queries && VisibleSlots(a, query, tile).end <= 0) ++query;
  int query_end = query;
  while (query_end < num_queries) {
    const Visible visible = VisibleSlots(a, query_end, tile);
    if (visible.begin >= visible.end) break;
    ++query_end;
  }
  for (; query < query_end; query += kScoreRows) {
    const int count = query_end - query < kScoreRows ? query_end - query : kScoreRows;
    if (direct) {
      ProcessQueries<true, kDType>(a, st, rows, next, query, count, tile);
    } else {
      ProcessQueries<false, kDType>(a, st, rows, nullptr, query, count, tile);
    }
  }
}

static void ResetPiece(const AttentionState& st, int num_queries) {
  for (int query = 0; query < num_queries; ++query) {
    float* output = st.piece.output + query * st.padded_dim;
    for (int d = 0; d < st.padded_dim; d += 16) Store(output + d, Zero());
    Store(st.piece.sums + query * 16, Zero());
    st.piece.maxima[query] = -__builtin_inff();
  }
}

// total = total and piece, of one query.
BATON_INLINE void MergeState(int padded_dim, float* output, float* sums, float* maximum, const float* piece_output,
                             const float* piece_sums, float piece_maximum) {
  const float new_max = piece_maximum > *maximum ? piece_maximum : *maximum;
  const VF old_factor = ExpNotPositive(Set1(*maximum - new_max));
  const VF piece_factor = ExpNotPositive(Set1(piece_maximum - new_max));
  *maximum = new_max;
  Store(sums, Fma(Load(piece_sums), piece_factor, Mul(Load(sums), old_factor)));
  for (int d = 0; d < padded_dim; d += 16) {
    Store(output + d, Fma(Load(piece_output + d), piece_factor, Mul(Load(output + d), old_factor)));
  }
}

// Adds the piece of keys at `piece` to what the earlier ones gave.
static void MergePiece(const AttentionArgs& a, const AttentionState& st, int piece, int num_queries) {
  for (int query = 0; query < num_queries; ++query) {
    const int position = a.first_position + query / a.num_heads;
    const int begin = VisibleBegin(a, position);
    if (position < piece || begin >= piece + kKeyPiece) continue;  // sees nothing of it
    float* output = st.total.output + query * st.padded_dim;
    float* sums = st.total.sums + query * 16;
    const float* piece_output = st.piece.output + query * st.padded_dim;
    const float* piece_sums = st.piece.sums + query * 16;
    if (begin >= piece) {  // the first that it sees
      memcpy(output, piece_output, st.padded_dim * sizeof(float));
      memcpy(sums, piece_sums, 16 * sizeof(float));
      st.total.maxima[query] = st.piece.maxima[query];
    } else {
      MergeState(st.padded_dim, output, sums, st.total.maxima + query, piece_output, piece_sums,
                 st.piece.maxima[query]);
    }
  }
}

BATON_INLINE void StoreResult(const float* output, const float* sums, int head_dim, float* out) {
  const VF inverse = Set1(1.0f / ReduceAdd(Load(sums)));
  for (int d = 0; d < head_dim; d += 16) {
    const VF value = Mul(Load(output + d), inverse);
    if (d + 16 <= head_dim) {
      Store(out + d, value);
    } else {
      StoreN(out + d, value, head_dim - d);
    }
  }
}

BATON_INLINE float* OutOf(const AttentionArgs& a, int query) {
  return a.out + (a.row_begin + query / a.num_heads) * a.out_stride + query % a.num_heads * a.head_dim;
}

static AttentionState LayOut(const AttentionArgs& a) {
  AttentionState st;
  st.head_dim = a.head_dim;
  st.padded_dim = (a.head_dim + 15) / 16 * 16;
  float* memory = a.scratch;
  const auto take = [&memory](int n) {
    float* piece = memory;
    memory += n;
    return piece;
  };
  st.keys = take(kKeyTile * st.padded_dim);
  st.values = take(kKeyTile * st.padded_dim);
  st.weights = take(kScoreRows * kKeyTile);
  st.queries = take(kMaxAttentionQueries * st.padded_dim);
  for (SoftmaxState* state : {&st.piece, &st.total}) {
    state->output = take(kMaxAttentionQueries * st.padded_dim);
    state->sums = take(kMaxAttentionQueries * 16);
    state->maxima = take(kMaxAttentionQueries);
  }
  return st;
}

template <DType kDType>
static void AttentionOf(const AttentionArgs& a) {
  const int num_queries = (a.row_end - a.row_begin) * a.num_heads;
  const AttentionState st = LayOut(a);
  for (int query = 0; query < num_queries; ++query) {
    const float* q = a.q + (a.row_begin + query / a.num_heads) * a.q_stride + query % a.num_heads * a.head_dim;
    for (int d = 0; d < st.padded_dim; d += 16) {
      const VF value = d + 16 <= a.head_dim ? Load(q + d) : LoadN(q + d, a.head_dim - d);
      Store(st.queries + query * st.padded_dim + d, Mul(value, Set1(a.scale)));
    }
  }
  const int first = VisibleBegin(a, a.first_position);
  const int end = a.first_position + (a.row_end - a.row_begin);
  const int first_piece = first / kKeyPiece * kKeyPiece;
  for (int piece = first_piece; piece < end; piece += kKeyPiece) {
    if (a.only_piece >= 0 && piece != a.only_piece) continue;
    ResetPiece(st, num_queries);
    const int piece_end = piece + kKeyPiece < end ? piece + kKeyPiece : end;
    int tile = first / kKeyTile * kKeyTile;
    if (tile < piece) tile = piece;
    for (; tile < piece_end; tile += kKeyTile) ProcessTile<kDType>(a, st, tile, first, end, num_queries);
    if (a.only_piece < 0 && first_piece + kKeyPiece < end) MergePiece(a, st, piece, num_queries);
  }
  const SoftmaxState& state = a.only_piece < 0 && first_piece + kKeyPiece < end ? st.total : st.piece;
  for (int query = 0; query < num_queries; ++query) {
    const float* output = state.output + query * st.padded_dim;
    const float* sums = state.sums + query * 16;
    if (a.only_piece < 0) {
      StoreResult(output, sums, a.head_dim, OutOf(a, query));
      continue;
    }
    float* record = a.piece_records + query * (st.padded_dim + 32);
    memcpy(record, output, st.padded_dim * sizeof(float));
    memcpy(record + st.padded_dim, sums, 16 * sizeof(float));
    record[st.padded_dim + 16] = state.maxima[query];
  }
}

static void AttentionHead(const AttentionArgs& a) {
  switch (a.dtype) {
    case DType::kF32:
      return AttentionOf<DType::kF32>(a);
    case DType::kBF16:
      return AttentionOf<DType::kBF16>(a);
    default:
      return AttentionOf<DType::kF16>(a);
  }
}

// The records of all pieces of some queries, all of which see all of them, one after the other: merged into the first,
// then written out.
static void MergeRecords(const AttentionArgs& a, int num_pieces) {
  const int num_queries = (a.row_end - a.row_begin) * a.num_heads;
  const int padded_dim = (a.head_dim + 15) / 16 * 16, record_floats = padded_dim + 32;
  for (int query = 0; query < num_queries; ++query) {
    float* total = a.piece_records + query * record_floats;
    for (int piece = 1; piece < num_pieces; ++piece) {
      const float* record = total + piece * num_queries * record_floats;
      MergeState(padded_dim, total, total + padded_dim, total + padded_dim + 16, record, record + padded_dim,
                 record[padded_dim + 16]);
    }
    StoreResult(total, total + padded_dim, a.head_dim, OutOf(a, query));
  }
}
