// The work of one block of threads in attention: one unit and KV head, piece by piece. Included by attention.cu only.
//
// A tile of 64 keys and values lies in shared memory in its own bits. Threads are, in turn: key by half of the queries
// (scores), lane by query (softmax), pair of dimensions by half of the queries (outputs, in registers). Every sum is one
// thread's, in the CPU's order (kernels/cpu/attention_impl.h), so no number of threads changes a bit.
#ifndef BATON_KERNELS_CUDA_ATTENTION_UNIT_CUH_
#define BATON_KERNELS_CUDA_ATTENTION_UNIT_CUH_

#include "kernels/cuda/math.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeyTile = 64;
constexpr int kPairSlots = 2;  // pairs of dimensions of a thread: head_dim up to 2 * 64 * 2
constexpr int kSumLanes = 16;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr size_t kNowhere = ~size_t{0};

// AttentionArgs as the device needs it.
struct Paged {
  AttentionArgs a;
  const std::byte* keys;  // of head 0 of the layer in block 0
  size_t block_bytes, head_bytes, values_after;  // from a head's keys to its values
  int head_dim, block_size, row_vectors;         // 16 bytes of a key
};

template <DType kDType>
struct Element {
  static constexpr int kPerVector = kDType == DType::kF32 ? 4 : 8;

  __device__ __forceinline__ static float Of(uint32_t word, bool high) {
    if constexpr (kDType == DType::kF16) return HalfValue(static_cast<uint16_t>(high ? word >> 16 : word));
    return __uint_as_float(high ? word & 0xffff0000 : word << 16);  // BF16
  }
  // Element k of 16 bytes.
  __device__ __forceinline__ static float Of(const uint4& bytes, int k) {
    const int w = kDType == DType::kF32 ? k : k / 2;
    const uint32_t word = w == 0 ? bytes.x : w == 1 ? bytes.y : w == 2 ? bytes.z : bytes.w;
    if constexpr (kDType == DType::kF32) return __uint_as_float(word);
    return Of(word, k % 2 == 1);
  }
  // Elements 2 * pair and 2 * pair + 1 of a row.
  __device__ __forceinline__ static float2 Pair(const uint4* row, int pair) {
    if constexpr (kDType == DType::kF32) return reinterpret_cast<const float2*>(row)[pair];
    const uint32_t word = reinterpret_cast<const uint32_t*>(row)[pair];
    return {Of(word, false), Of(word, true)};
  }
};

// What a query sees of a tile: slots [begin, end).
struct Visible {
  int begin, end;
};

template <int kQueries>
struct Shared {
  size_t offset[kKeyTile];  // of key j's row from the layer's keys of block 0; kNowhere: not there
  Visible visible[kQueries];
  float sums[kQueries][kSumLanes], total_sums[kQueries][kSumLanes];
  float maximum[kQueries], total_maximum[kQueries];
  float factor[kQueries];
  float weights[kQueries][kKeyTile];  // first the scores
};

template <DType kDType, int kQueries>
class Worker {
 public:
  using E = Element<kDType>;
  static constexpr int kHalf = kQueries / 2;

  __device__ Worker(const Paged& p, const AttentionUnit& unit, int kv_head)
      : p_(p),
        u_(unit),
        s_(BlockShared<Shared<kQueries>>()),
        keys_(DynamicShared<uint4>()),
        values_(keys_ + kKeyTile * (p.row_vectors + 1)),
        queries_(reinterpret_cast<float*>(values_ + kKeyTile * p.row_vectors)),
        totals_(queries_ + kQueries * p.head_dim),
        head_base_(p.keys + kv_head * p.head_bytes),
        first_head_(kv_head * p.a.group + unit.head_begin),
        num_queries_(unit.num_rows * unit.num_heads) {}

  static size_t SharedBytes(int head_dim, int row_vectors, bool totals) {
    return sizeof(uint4) * kKeyTile * (2 * row_vectors + 1) + sizeof(float) * kQueries * head_dim * (totals ? 2 : 1);
  }

  __device__ int first_position() const { return u_.first_position; }
  __device__ int end() const { return u_.first_position + u_.num_rows; }
  __device__ int VisibleBegin(int position) const {
    const int window = p_.a.sliding_window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  __device__ int PositionOf(int query) const { return u_.first_position + query / u_.num_heads; }

  __device__ void LoadQueries() {
    for (int i = threadIdx.x; i < num_queries_ * p_.head_dim; i += kThreads) {
      const int query = i / p_.head_dim, d = i % p_.head_dim;
      queries_[i] = p_.a.q[(u_.row_begin + query / u_.num_heads) * p_.a.q_stride +
                           int64_t{first_head_ + query % u_.num_heads} * p_.head_dim + d] *
                    p_.a.scale;
    }
  }

  // The keys [piece, piece + kAttentionPiece) that any row sees: outputs in registers, sums and maxima in s_.
  __device__ void Piece(int piece) {
    __syncthreads();
    for (int i = threadIdx.x; i < kQueries * kSumLanes; i += kThreads) s_.sums[i / kSumLanes][i % kSumLanes] = 0;
    if (threadIdx.x < kQueries) s_.maximum[threadIdx.x] = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
#pragma unroll
      for (int slot = 0; slot < kPairSlots; ++slot) out_[i][slot] = {0, 0};
    }
    const int first = VisibleBegin(u_.first_position);
    const int begin = first / kKeyTile * kKeyTile;
    const int piece_end = piece + kAttentionPiece < end() ? piece + kAttentionPiece : end();
    for (int tile = begin > piece ? begin : piece; tile < piece_end; tile += kKeyTile) {
      LoadTile(tile, first);
      Scores();
      __syncthreads();
      Softmax(tile);
      __syncthreads();
      Accumulate(tile);
    }
    __syncthreads();
  }

  // Adds the piece to the totals of the queries that see something of it.
  __device__ void Merge(int piece) {
    ForEachOutput([&](int query, int d, float2 value) {
      const int begin = VisibleBegin(PositionOf(query));
      if (PositionOf(query) < piece || begin >= piece + kAttentionPiece) return;
      float* const total = totals_ + query * p_.head_dim + d;
      if (begin >= piece) {  // the first that it sees
        total[0] = value.x;
        total[1] = value.y;
        return;
      }
      const float old_factor = OldFactor(query), factor = PieceFactor(query);
      total[0] = fmaf(value.x, factor, total[0] * old_factor);
      total[1] = fmaf(value.y, factor, total[1] * old_factor);
    });
    for (int i = threadIdx.x; i < num_queries_ * kSumLanes; i += kThreads) {
      const int query = i / kSumLanes, lane = i % kSumLanes, begin = VisibleBegin(PositionOf(query));
      if (PositionOf(query) < piece || begin >= piece + kAttentionPiece) continue;
      float& total = s_.total_sums[query][lane];
      total = begin >= piece ? s_.sums[query][lane]
                             : fmaf(s_.sums[query][lane], PieceFactor(query), total * OldFactor(query));
    }
    __syncthreads();
    const int query = threadIdx.x;
    if (query < num_queries_ && PositionOf(query) >= piece) {
      const int begin = VisibleBegin(PositionOf(query));
      if (begin >= piece && begin < piece + kAttentionPiece) s_.total_maximum[query] = s_.maximum[query];
      if (begin < piece && s_.maximum[query] > s_.total_maximum[query]) s_.total_maximum[query] = s_.maximum[query];
    }
    // The next Piece begins with a barrier.
  }

  __device__ void StoreResult() {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < num_queries_) s_.factor[threadIdx.x] = InverseOf(s_.total_sums[threadIdx.x]);
    __syncthreads();
    for (int i = threadIdx.x; i < num_queries_ * p_.head_dim; i += kThreads) {
      const int query = i / p_.head_dim;
      p_.a.out[(u_.row_begin + query / u_.num_heads) * p_.a.out_stride +
               int64_t{first_head_ + query % u_.num_heads} * p_.head_dim + i % p_.head_dim] = totals_[i] * s_.factor[query];
    }
  }

  __device__ void StoreRecord(float* record) {
    const int64_t floats = AttentionRecordFloats(p_.head_dim);
    ForEachOutput([&](int query, int d, float2 value) {
      record[query * floats + d] = value.x;
      record[query * floats + d + 1] = value.y;
    });
    for (int i = threadIdx.x; i < num_queries_ * kSumLanes; i += kThreads) {
      record[i / kSumLanes * floats + p_.head_dim + i % kSumLanes] = s_.sums[i / kSumLanes][i % kSumLanes];
    }
    const int query = threadIdx.x;
    if (query < num_queries_) record[query * floats + p_.head_dim + kSumLanes] = s_.maximum[query];
  }

  // 1 / the sum of 16 lanes, by the tree: i + (i + 8), then + 4, + 2, + 1.
  __device__ static float InverseOf(const float* sums) {
    float lane[kSumLanes];
#pragma unroll
    for (int i = 0; i < kSumLanes; ++i) lane[i] = sums[i];
#pragma unroll
    for (int n = kSumLanes / 2; n > 0; n /= 2) {
#pragma unroll
      for (int i = 0; i < kSumLanes / 2; ++i) {
        if (i < n) lane[i] += lane[i + n];
      }
    }
    return 1.0f / lane[0];
  }

 private:
  // fn(query, dimension, outputs of it and the next), of those that this thread has.
  template <typename Fn>
  __device__ __forceinline__ void ForEachOutput(const Fn& fn) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int query = static_cast<int>(threadIdx.x) / kKeyTile + 2 * i;
#pragma unroll
      for (int slot = 0; slot < kPairSlots; ++slot) {
        const int d = 2 * (threadIdx.x % kKeyTile + slot * kKeyTile);
        if (query < num_queries_ && d < p_.head_dim) fn(query, d, out_[i][slot]);
      }
    }
  }

  __device__ float NewMaximum(int query) const {
    return s_.maximum[query] > s_.total_maximum[query] ? s_.maximum[query] : s_.total_maximum[query];
  }
  __device__ float OldFactor(int query) const { return ExpNotPositive(s_.total_maximum[query] - NewMaximum(query)); }
  __device__ float PieceFactor(int query) const { return ExpNotPositive(s_.maximum[query] - NewMaximum(query)); }

  __device__ void LoadTile(int tile, int first) {
    if (threadIdx.x < kKeyTile) {
      const int position = tile + threadIdx.x;
      size_t offset = kNowhere;
      if (position >= first && position < end()) {
        const int32_t block = p_.a.block_tables[u_.table_begin + position / p_.block_size];
        offset = block * p_.block_bytes + static_cast<size_t>(position % p_.block_size) * p_.row_vectors * sizeof(uint4);
      }
      s_.offset[threadIdx.x] = offset;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kKeyTile * p_.row_vectors; i += kThreads) {
      const int key = i / p_.row_vectors, vector = i % p_.row_vectors;
      if (s_.offset[key] == kNowhere) continue;  // what lies there is never used
      const std::byte* const from = head_base_ + s_.offset[key] + vector * sizeof(uint4);
      keys_[key * (p_.row_vectors + 1) + vector] = *reinterpret_cast<const uint4*>(from);
      values_[i] = *reinterpret_cast<const uint4*>(from + p_.values_after);
    }
    __syncthreads();
  }

  __device__ void Scores() {
    const int key = threadIdx.x % kKeyTile, half = threadIdx.x / kKeyTile;
    const uint4* const row = keys_ + key * (p_.row_vectors + 1);
    float score[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) score[i] = 0;
    for (int vector = 0; vector < p_.row_vectors; ++vector) {
      const uint4 bytes = row[vector];
      const float* const q = queries_ + vector * E::kPerVector;
#pragma unroll
      for (int k = 0; k < E::kPerVector; ++k) {
        const float value = E::Of(bytes, k);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const int query = half + 2 * i;
          if (query < num_queries_) score[i] = fmaf(value, q[query * p_.head_dim + k], score[i]);
        }
      }
    }
    const float cap = p_.a.logit_softcap;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int query = half + 2 * i;
      if (query < num_queries_) s_.weights[query][key] = cap > 0 ? cap * Tanh(score[i] * (1.0f / cap)) : score[i];
    }
  }

  // One warp a query: scores become weights.
  __device__ void Softmax(int tile) {
    const int lane = threadIdx.x % 32;
    for (int query = threadIdx.x / 32; query < num_queries_; query += kThreads / 32) {
      const int position = PositionOf(query);
      const int begin = VisibleBegin(position) - tile, end = position + 1 - tile;
      if (lane == 0) s_.visible[query] = {begin, end};
      if (end <= 0 || begin >= kKeyTile) {
        if (lane == 0) s_.factor[query] = 1.0f;
        continue;
      }
      float* const weights = s_.weights[query];
      const float first = lane >= begin && lane < end ? weights[lane] : kMinusInfinity;
      const float second = lane + 32 >= begin && lane + 32 < end ? weights[lane + 32] : kMinusInfinity;
      float largest = first > second ? first : second;
      for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(kWholeWarp, largest, distance);
        largest = largest > other ? largest : other;
      }
      const float old_max = s_.maximum[query], new_max = largest > old_max ? largest : old_max;
      const float factor = new_max != old_max ? ExpNotPositive(old_max - new_max) : 1.0f;
      weights[lane] = ExpNotPositive(first - new_max);
      weights[lane + 32] = ExpNotPositive(second - new_max);
      __syncwarp();
      if (lane < kSumLanes) {
        float sum = s_.sums[query][lane] * factor;
        for (int j = lane; j < kKeyTile; j += kSumLanes) sum += weights[j];
        s_.sums[query][lane] = sum;
      }
      if (lane == 0) {
        s_.maximum[query] = new_max;
        s_.factor[query] = factor;
      }
    }
  }

  __device__ void Accumulate(int tile) {
    const int half = threadIdx.x / kKeyTile, pair = threadIdx.x % kKeyTile;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int query = half + 2 * i;
      if (query >= num_queries_) continue;
      const float factor = s_.factor[query];
#pragma unroll
      for (int slot = 0; slot < kPairSlots; ++slot) {
        out_[i][slot].x *= factor;
        out_[i][slot].y *= factor;
      }
    }
    // Mostly all queries see all of the tile. Where not, a hidden value must not enter: it may be NaN.
    const bool all_see = tile + kKeyTile <= u_.first_position + 1 && tile >= VisibleBegin(end() - 1);
    const int keys = end() - tile < kKeyTile ? end() - tile : kKeyTile;
#pragma unroll
    for (int slot = 0; slot < kPairSlots; ++slot) {
      if (2 * (pair + slot * kKeyTile) >= p_.head_dim) break;
      const uint4* row = values_;
      for (int j = 0; j < keys; ++j, row += p_.row_vectors) {
        const float2 value = E::Pair(row, pair + slot * kKeyTile);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const int query = half + 2 * i;
          if (query >= num_queries_) continue;
          if (!all_see && (j < s_.visible[query].begin || j >= s_.visible[query].end)) continue;
          const float weight = s_.weights[query][j];
          out_[i][slot].x = fmaf(value.x, weight, out_[i][slot].x);
          out_[i][slot].y = fmaf(value.y, weight, out_[i][slot].y);
        }
      }
    }
  }

  const Paged& p_;
  const AttentionUnit u_;
  Shared<kQueries>& s_;
  uint4* const keys_;      // [kKeyTile][row_vectors + 1]: so that 8 threads read 8 different banks
  uint4* const values_;    // [kKeyTile][row_vectors]
  float* const queries_;   // [kQueries][head_dim], scaled
  float* const totals_;    // [kQueries][head_dim]; prefill
  const std::byte* const head_base_;
  const int first_head_, num_queries_;
  float2 out_[kHalf][kPairSlots];
};

}  // namespace
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_UNIT_CUH_
