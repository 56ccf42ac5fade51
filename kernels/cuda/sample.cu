// From logits to tokens: engine/sampler.h's definition for greedy rows, and for rows with temperature and min_p. The draw is
// the same Philox number and the weights are the same doubles; their sum runs over chunks of kSampleChunk ids, each in
// ascending id, then over the chunks. For a vocabulary of one chunk that is the host's order; for larger ones the sums
// may differ in the last bit, which changes a token where the draw falls within some 1e-13 of a boundary.
#include "common/philox.h"
#include "kernels/cuda/math.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kNegligible = -50.0;

// ExpNonPositive of engine/sampler.cc, operation by operation.
__device__ double ExpNonPositive(double x) {
  if (!(x > -700.0)) return 0.0;
  const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52;
  const double k = shifted - 0x1.8p52;
  const double r = (x - k * 0x1.62e42fefa3800p-1) - k * 0x1.ef35793c76730p-45;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(shifted));
  return p * __longlong_as_double(static_cast<long long>((bits + 1023) << 52));
}

// Relative to the largest logit's; 0 for what may not be drawn.
__device__ __forceinline__ double Weight(float logit, float max, const SampleRow& row) {
  const double x = (static_cast<double>(logit) - static_cast<double>(max)) / static_cast<double>(row.temperature);
  if (!(x >= kNegligible)) return 0.0;
  const double weight = ExpNonPositive(x);
  return weight >= row.min_p ? weight : 0.0;
}

struct Best {
  float value;
  int id;  // -1: none; kNotFinite: a logit is infinite or NaN
};
constexpr int kNotFinite = -2;

__device__ __forceinline__ Best Better(Best a, Best b) {
  if (a.id == kNotFinite || b.id == kNotFinite) return {0, kNotFinite};
  if (a.id < 0) return b;
  if (b.id < 0) return a;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

// The largest logit of each row, and of those the lowest id.
__global__ void __launch_bounds__(kThreads) ArgmaxKernel(SampleArgs a) {
  Best(&best)[kThreads] = BlockShared<Best[kThreads]>();
  const float* const logits = a.logits + blockIdx.x * a.logits_stride;
  Best mine = {0, -1};
  for (int id = threadIdx.x; id < a.vocab_size; id += kThreads) {
    const bool finite = (__float_as_uint(logits[id]) & 0x7f800000) != 0x7f800000;
    mine = Better(mine, {logits[id], finite ? id : kNotFinite});
  }
  best[threadIdx.x] = mine;
  for (int n = kThreads / 2; n > 0; n /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < n) best[threadIdx.x] = Better(best[threadIdx.x], best[threadIdx.x + n]);
  }
  if (threadIdx.x == 0) {
    a.token_ids[blockIdx.x] = best[0].id >= 0 ? best[0].id : -1;
    a.maxima[blockIdx.x] = best[0].value;
  }
}

__device__ __forceinline__ void ChunkWeights(const SampleArgs& a, int row, int chunk, double* weights) {
  const SampleRow params = a.rows[row];
  const float* const logits = a.logits + row * a.logits_stride;
  for (int i = threadIdx.x; i < kSampleChunk; i += kThreads) {
    const int id = chunk * kSampleChunk + i;
    weights[i] = id < a.vocab_size ? Weight(logits[id], a.maxima[row], params) : 0.0;
  }
}

__global__ void __launch_bounds__(kThreads) ChunkSumKernel(SampleArgs a) {
  double(&weights)[kSampleChunk] = BlockShared<double[kSampleChunk]>();
  const int row = blockIdx.x, chunk = blockIdx.y;
  if (a.rows[row].temperature <= 0 || a.token_ids[row] < 0) return;
  ChunkWeights(a, row, chunk, weights);
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int i = 0; i < kSampleChunk; ++i) sum += weights[i];
  a.chunk_sums[int64_t{row} * gridDim.y + chunk] = sum;
}

struct Drawn {
  int chunk;
  double before, target;  // mass of the chunks before it; what the mass must pass
};

__global__ void __launch_bounds__(kThreads) DrawKernel(SampleArgs a, int num_chunks) {
  double(&weights)[kSampleChunk] = BlockShared<double[kSampleChunk]>();
  Drawn& drawn = BlockShared<Drawn, 1>();
  const int row = blockIdx.x;
  const SampleRow params = a.rows[row];
  if (params.temperature <= 0 || a.token_ids[row] < 0) return;
  if (threadIdx.x == 0) {
    const double* const sums = a.chunk_sums + int64_t{row} * num_chunks;
    double total = 0;
    for (int chunk = 0; chunk < num_chunks; ++chunk) total += sums[chunk];
    drawn.target = total * PhiloxUniform(params.seed, params.choice_index, params.position, 0);
    // The last chunk with any weight if rounding lets none pass.
    double mass = 0;
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      if (sums[chunk] == 0.0) continue;
      drawn.chunk = chunk;
      drawn.before = mass;
      mass += sums[chunk];
      if (mass > drawn.target) break;
    }
  }
  __syncthreads();
  ChunkWeights(a, row, drawn.chunk, weights);
  __syncthreads();
  if (threadIdx.x != 0) return;
  double mass = drawn.before;
  for (int i = 0; i < kSampleChunk; ++i) {
    if (weights[i] == 0.0) continue;
    a.token_ids[row] = drawn.chunk * kSampleChunk + i;
    mass += weights[i];
    if (mass > drawn.target) break;
  }
}

}  // namespace

void Sample(const SampleArgs& args, Stream stream) {
  const int num_chunks = static_cast<int>(NumSampleChunks(args.vocab_size));
  Launch(ArgmaxKernel, dim3(args.m), dim3(kThreads), 0, stream, args);
  if (args.rows == nullptr) return;
  Launch(ChunkSumKernel, dim3(args.m, num_chunks), dim3(kThreads), 0, stream, args);
  Launch(DrawKernel, dim3(args.m), dim3(kThreads), 0, stream, args, num_chunks);
}

}  // namespace baton::kernels::cuda
