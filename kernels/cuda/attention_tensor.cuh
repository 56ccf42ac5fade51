// The work of a block of threads in attention on tensor cores (class kBf16, keys and values of 16 bits). Included by
// attention.cu only.
//
// A warp has 16 queries and goes through tiles of 64 keys at multiples of 64 of the absolute position, in pieces of
// kAttentionPiece: queries times scale, rounded to the keys' type; scores by m16n8k16 steps in ascending dimension;
// maximum; if it grew, sum and output times exp(old - new); weights exp(score - max), rounded to the values' type,
// times values by m16n8k16 steps in ascending key. Keys that a query does not see have the weight 0. Sums of weights
// are of the unrounded ones: a lane's keys in ascending order, then its three neighbours'. Each piece starts afresh;
// pieces merge in ascending order as in kernels/README.md. So a query has the same bits in prefill, where a unit's
// block goes through all pieces and the output is merged where it will lie, and in decode, where a piece is a block of
// one warp.
//
// Scores and weights stay in registers: those that a product leaves in a lane are those that the next wants there. A
// value that is hidden from a query meets its weight 0 all the same, so where some query of a unit does not see all of
// a tile, values that are not finite are taken out and whoever sees them gets NaN.
#ifndef BATON_KERNELS_CUDA_ATTENTION_TENSOR_CUH_
#define BATON_KERNELS_CUDA_ATTENTION_TENSOR_CUH_

#include "kernels/cuda/attention_unit.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kWarpQueries = 16;
constexpr int kTensorPrefillWarps = kTensorPrefillQueries / kWarpQueries;

struct TensorShared {
  size_t offset[2][kKeyTile];  // as Shared::offset; of a tile and the next
  int bad[kKeyTile];       // the key's value is not finite
};

// kOctets: at least head_dim / 8, and even.
template <DType kDType, int kOctets, int kWarps>
class TensorWorker {
 public:
  __device__ __forceinline__ TensorWorker(const Paged& p, const AttentionUnit& unit, int kv_head)
      : p_(p),
        u_(unit),
        s_(BlockShared<TensorShared>()),
        stride_(p.row_vectors + 1),
        keys_(DynamicShared<uint4>()),
        values_(keys_ + kKeyTile * stride_),
        queries_(values_ + kKeyTile * stride_),
        head_base_(p.keys + kv_head * p.head_bytes),
        first_head_(kv_head * p.a.group + unit.head_begin),
        num_queries_(unit.num_rows * unit.num_heads),
        first_query_(static_cast<int>(threadIdx.x) / 32 * kWarpQueries) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = QueryOf(r);
      position_[r] = query < num_queries_ ? PositionOf(query) : -1;
      begin_[r] = query < num_queries_ ? VisibleBegin(position_[r]) : 0;
    }
    StartPiece();
  }

  static size_t SharedBytes(int row_vectors) {
    return sizeof(uint4) * (2 * kKeyTile + kWarps * kWarpQueries) * (row_vectors + 1);
  }

  __device__ __forceinline__ void LoadQueries() {
    for (int i = threadIdx.x; i < kWarps * kWarpQueries * stride_; i += kWarps * 32) {
      const int query = i / stride_, vector = i % stride_;
      float x[8] = {};
      if (query < num_queries_ && vector < p_.row_vectors) {
        const float* const q = p_.a.q + (u_.row_begin + query / u_.num_heads) * p_.a.q_stride +
                               int64_t{first_head_ + query % u_.num_heads} * p_.head_dim + vector * 8;
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = q[k] * p_.a.scale;
      }
      queries_[i] = {Pair(x[0], x[1]), Pair(x[2], x[3]), Pair(x[4], x[5]), Pair(x[6], x[7])};
    }
    // With an odd number of octets of dimensions the last step takes one beyond: zeros on both sides.
    for (int key = threadIdx.x; key < kKeyTile; key += kWarps * 32) {
      keys_[key * stride_ + p_.row_vectors] = {0, 0, 0, 0};
    }
  }

  // The first key that some query of the unit sees, down to a tile's begin.
  __device__ __forceinline__ int first_tile() const { return VisibleBegin(u_.first_position) / kKeyTile * kKeyTile; }
  __device__ __forceinline__ int end() const { return u_.first_position + u_.num_rows; }

  // Keys [begin, end), begin at a tile's. on_piece(piece) after the last tile of each.
  template <typename Fn>
  __device__ __forceinline__ void Run(int begin, int end, const Fn& on_piece) {
    int slot = 0;
    WriteOffsets(begin, slot);
    __syncthreads();
    Copy(keys_, 0, slot);
    CommitCopies();
    Copy(values_, p_.values_after, slot);
    CommitCopies();
    for (int tile = begin; tile < end; tile += kKeyTile) {
      const bool needed = Sees(tile), more = tile + kKeyTile < end;
      slot ^= 1;
      WriteOffsets(tile + kKeyTile, slot);
      WaitForCopies<1>();
      __syncthreads();  // the keys are there for all
      float weights[kKeyTile / 8][4] = {};
      if (needed) Scores(weights);
      __syncthreads();  // and have been used
      if (more) Copy(keys_, 0, slot);
      CommitCopies();
      if (needed) Softmax(tile, weights);
      WaitForCopies<1>();
      __syncthreads();  // the values are there for all
      if (tile + kKeyTile > u_.first_position + 1 || tile < VisibleBegin(this->end() - 1)) {
        TakeOutBadValues(tile, weights);
      }
      if (needed) Accumulate(weights);
      __syncthreads();
      if (more) Copy(values_, p_.values_after, slot);
      CommitCopies();
      if ((tile + kKeyTile) % kAttentionPiece == 0 || !more) {
        on_piece(tile / kAttentionPiece * kAttentionPiece);
        StartPiece();
      }
    }
  }

  // Adds the piece to the totals of the queries that see something of it; outputs' totals lie in the output.
  __device__ __forceinline__ void Merge(int piece) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = SumOfLanes(sum_[r]);
      if (position_[r] < piece || begin_[r] >= piece + kAttentionPiece) continue;
      const bool first = begin_[r] >= piece;
      const float maximum = first || maximum_[r] > total_maximum_[r] ? maximum_[r] : total_maximum_[r];
      const float old_factor = ExpNotPositive(total_maximum_[r] - maximum);
      const float factor = ExpNotPositive(maximum_[r] - maximum);
      total_sum_[r] = first ? sum : fmaf(sum, factor, total_sum_[r] * old_factor);
      total_maximum_[r] = maximum;
      ForEachOutput(OutputOf(r), r, [&](float* out, float value) {
        *out = first ? value : fmaf(value, factor, *out * old_factor);
      });
    }
  }

  __device__ __forceinline__ void StoreResult() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (position_[r] < 0) continue;
      const float inverse = 1.0f / total_sum_[r];
      ForEachOutput(OutputOf(r), r, [&](float* out, float) { *out *= inverse; });
    }
  }

  // As attention.cu's MergeKernel takes it: all of the sum is in the first of 16.
  __device__ __forceinline__ void StoreRecord(float* records) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = SumOfLanes(sum_[r]);
      if (position_[r] < 0) continue;
      float* const record = records + QueryOf(r) * AttentionRecordFloats(p_.head_dim);
      ForEachOutput(record, r, [&](float* out, float value) { *out = value; });
      if (Column() != 0) continue;
      for (int i = 0; i < kSumLanes; ++i) record[p_.head_dim + i] = i == 0 ? sum : 0.0f;
      record[p_.head_dim + kSumLanes] = maximum_[r];
    }
  }

 private:
  __device__ __forceinline__ static uint32_t Pair(float low, float high) {
    return kDType == DType::kBF16 ? Bf16Pair(low, high) : HalfPair(low, high);
  }
  __device__ __forceinline__ static void Step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kDType == DType::kBF16) {
      MultiplyAdd(d, a, b0, b1);
    } else {
      MultiplyAddHalf(d, a, b0, b1);
    }
  }
  __device__ __forceinline__ int VisibleBegin(int position) const {
    const int window = p_.a.sliding_window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  __device__ __forceinline__ int PositionOf(int query) const { return u_.first_position + query / u_.num_heads; }
  // This lane has columns 2 * Column() and the next of each octet, of two queries.
  __device__ __forceinline__ static int Column() { return threadIdx.x % 4; }
  __device__ __forceinline__ int QueryOf(int r) const {
    return first_query_ + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
  }
  __device__ __forceinline__ float* OutputOf(int r) const {
    const int query = QueryOf(r);
    return p_.a.out + (u_.row_begin + query / u_.num_heads) * p_.a.out_stride +
           int64_t{first_head_ + query % u_.num_heads} * p_.head_dim;
  }
  // Whether a query of this warp sees a key of the tile.
  __device__ __forceinline__ bool Sees(int tile) const {
    if (first_query_ >= num_queries_) return false;
    const int last = first_query_ + kWarpQueries < num_queries_ ? first_query_ + kWarpQueries - 1 : num_queries_ - 1;
    return PositionOf(last) >= tile && VisibleBegin(PositionOf(first_query_)) < tile + kKeyTile;
  }
  __device__ __forceinline__ static float SumOfLanes(float sum) {
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    return sum + __shfl_xor_sync(kWholeWarp, sum, 2);
  }
  // fn(where it lies in a row of head_dim, the output), of this lane's for query r.
  template <typename Fn>
  __device__ __forceinline__ void ForEachOutput(float* row, int r, const Fn& fn) const {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (o >= p_.row_vectors) break;
      float* const out = row + 8 * o + 2 * Column();
      fn(out, out_[o][2 * r]);
      fn(out + 1, out_[o][2 * r + 1]);
    }
  }

  __device__ __forceinline__ void StartPiece() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum_[r] = kMinusInfinity;
      sum_[r] = 0;
    }
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[o][i] = 0;
    }
  }

  __device__ __forceinline__ void WriteOffsets(int tile, int slot) {
    for (int key = threadIdx.x; key < kKeyTile; key += kWarps * 32) {
      const int position = tile + key;
      size_t offset = kNowhere;
      if (position >= VisibleBegin(u_.first_position) && position < end()) {
        const int32_t block = p_.a.block_tables[u_.table_begin + position / p_.block_size];
        offset = block * p_.block_bytes +
                 static_cast<size_t>(position % p_.block_size) * p_.row_vectors * sizeof(uint4);
      }
      s_.offset[slot][key] = offset;
    }
  }

  // Begins to copy the tile's keys (or values, `after` them); zeros for what is not there.
  __device__ __forceinline__ void Copy(uint4* to, size_t after, int slot) {
    const int key_step = kWarps * 32 / p_.row_vectors, vector_step = kWarps * 32 % p_.row_vectors;
    int key = static_cast<int>(threadIdx.x) / p_.row_vectors, vector = static_cast<int>(threadIdx.x) % p_.row_vectors;
    while (key < kKeyTile) {
      const size_t offset = s_.offset[slot][key];
      const bool inside = offset != kNowhere;
      const std::byte* const from = head_base_ + (inside ? offset + after + vector * sizeof(uint4) : 0);
      CopyAsync16(to + key * stride_ + vector, from, inside);
      key += key_step;
      vector += vector_step;
      if (vector >= p_.row_vectors) {
        vector -= p_.row_vectors;
        ++key;
      }
    }
  }

  __device__ __forceinline__ void Scores(float (&scores)[kKeyTile / 8][4]) {
    const int lane = threadIdx.x % 32;
    const uint4* const query = queries_ + (first_query_ + lane % 16) * stride_ + lane / 16;
    const uint4* const key = keys_ + (lane / 16 * 8 + lane % 8) * stride_ + lane / 8 % 2;
    for (int vector = 0; vector < p_.row_vectors; vector += 2) {
      uint32_t a[4];
      LoadMatrices(query + vector, a);
#pragma unroll
      for (int j = 0; j < kKeyTile / 8; j += 2) {
        uint32_t b[4];
        LoadMatrices(key + j * 8 * stride_ + vector, b);
        Step(scores[j], a, b[0], b[1]);
        Step(scores[j + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void Softmax(int tile, float (&scores)[kKeyTile / 8][4]) {
    const float cap = p_.a.logit_softcap;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = begin_[r] - tile, end = position_[r] + 1 - tile;
      float largest = kMinusInfinity;
#pragma unroll
      for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * j + 2 * Column() + c;
          float& score = scores[j][2 * r + c];
          if (cap > 0) score = cap * Tanh(score * (1.0f / cap));
          if (key >= begin && key < end && score > largest) largest = score;
        }
      }
#pragma unroll
      for (int distance = 1; distance <= 2; distance *= 2) {
        const float other = __shfl_xor_sync(kWholeWarp, largest, distance);
        largest = largest > other ? largest : other;
      }
      const float maximum = largest > maximum_[r] ? largest : maximum_[r];
      const float factor = maximum != maximum_[r] ? ExpNotPositive(maximum_[r] - maximum) : 1.0f;
      float sum = sum_[r] * factor;
#pragma unroll
      for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * j + 2 * Column() + c;
          float& score = scores[j][2 * r + c];
          score = key >= begin && key < end ? ExpNotPositive(score - maximum) : 0.0f;
          sum += score;
        }
      }
      maximum_[r] = maximum;
      sum_[r] = sum;
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        out_[o][2 * r] *= factor;
        out_[o][2 * r + 1] *= factor;
      }
    }
  }

  __device__ __forceinline__ void TakeOutBadValues(int tile, float (&weights)[kKeyTile / 8][4]) {
    constexpr uint32_t kExponent = kDType == DType::kBF16 ? 0x7f80 : 0x7c00;
    const auto is_bad = [](uint32_t pair) {
      return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
    };
    for (int key = threadIdx.x; key < kKeyTile; key += kWarps * 32) {
      uint4* const row = values_ + key * stride_;
      bool bad = false;
      for (int vector = 0; vector < p_.row_vectors; ++vector) {
        const uint4 v = row[vector];
        bad |= is_bad(v.x) || is_bad(v.y) || is_bad(v.z) || is_bad(v.w);
      }
      s_.bad[key] = bad;
      for (int vector = 0; bad && vector < p_.row_vectors; ++vector) row[vector] = {0, 0, 0, 0};
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * j + 2 * Column() + c;
          const bool seen = tile + key >= begin_[r] && tile + key <= position_[r];
          if (seen && s_.bad[key] != 0) weights[j][2 * r + c] = __uint_as_float(0x7fffffff);
        }
      }
    }
  }

  __device__ __forceinline__ void Accumulate(const float (&weights)[kKeyTile / 8][4]) {
    const int lane = threadIdx.x % 32;
    const uint4* const value = values_ + lane % 16 * stride_ + lane / 16;
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; j += 2) {
      const uint32_t a[4] = {Pair(weights[j][0], weights[j][1]), Pair(weights[j][2], weights[j][3]),
                             Pair(weights[j + 1][0], weights[j + 1][1]), Pair(weights[j + 1][2], weights[j + 1][3])};
#pragma unroll
      for (int o = 0; o < kOctets; o += 2) {
        if (o >= p_.row_vectors) break;
        uint32_t b[4];
        LoadMatricesTransposed(value + j * 8 * stride_ + o, b);  // nobody takes the sums of an octet beyond the last
        Step(out_[o], a, b[0], b[1]);
        Step(out_[o + 1], a, b[2], b[3]);
      }
    }
  }

  const Paged& p_;
  const AttentionUnit u_;
  TensorShared& s_;
  const int stride_;      // in vectors: one more than a row's, so that 8 rows meet different banks
  uint4* const keys_;     // [kKeyTile][stride_]
  uint4* const values_;   // [kKeyTile][stride_]
  uint4* const queries_;  // [kWarps * kWarpQueries][stride_]
  const std::byte* const head_base_;
  const int first_head_, num_queries_, first_query_;
  int position_[2], begin_[2];  // -1: no query
  float maximum_[2], sum_[2];   // of the piece; the sum of this lane's keys
  float total_maximum_[2] = {kMinusInfinity, kMinusInfinity}, total_sum_[2] = {};
  float out_[kOctets][4];
};

}  // namespace
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_TENSOR_CUH_
