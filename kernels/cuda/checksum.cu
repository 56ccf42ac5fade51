// XXH3-64 (seed 0, default secret), as xxHash's specification defines it for inputs longer than 240 bytes, so that a checksum
// made here is the host's (kvtransfer/block_check.h). The chain of the algorithm is one step for 1,024 bytes: what those add to
// the eight accumulators does not depend on the accumulators, so 256 threads make these sums for a tile of 32 KiB while the
// first warp folds those of the tile before.
#include "kernels/cuda/device.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9,
                   kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;

constexpr int kLanes = 8;     // accumulators; a stripe has 8 bytes for each
constexpr int kStripes = 16;  // of a step of the chain
constexpr int kWords = kLanes * kStripes;
constexpr int kTile = 32;     // steps that are summed at a time
constexpr int kThreads = 32 + kTile * kLanes;

constexpr uint8_t kSecretBytes[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

// The secret as the algorithm reads it: little-endian words from where it says.
struct Secret {
  uint64_t words[24];       // from bytes 0, 8, ...
  uint64_t last[kLanes];    // of the last stripe: from byte 192 - 64 - 7
  uint64_t merge[kLanes];   // from byte 11
  uint64_t start[kLanes];   // the accumulators'
};

Secret MakeSecret() {
  Secret secret = {};
  const auto read = [](int at) {
    uint64_t word = 0;
    for (int i = 7; i >= 0; --i) word = word << 8 | kSecretBytes[at + i];
    return word;
  };
  for (int i = 0; i < 24; ++i) secret.words[i] = read(8 * i);
  for (int i = 0; i < kLanes; ++i) secret.last[i] = read(192 - 64 - 7 + 8 * i);
  for (int i = 0; i < kLanes; ++i) secret.merge[i] = read(11 + 8 * i);
  const uint64_t start[kLanes] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                  kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  for (int i = 0; i < kLanes; ++i) secret.start[i] = start[i];
  return secret;
}

// What `n` stripes add to accumulator `lane`. words: the first stripe's; secrets[i]: of stripe i. The warp calls it, lanes in
// groups of eight.
__device__ __forceinline__ uint64_t SumStripes(const uint64_t* words, int n, int lane, const uint64_t* secrets) {
  uint64_t products = 0, values = 0;
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const uint64_t value = words[i * kLanes + lane], key = value ^ secrets[i];
    values += value;
    products += (key & 0xffffffff) * (key >> 32);
  }
  return products + __shfl_xor_sync(kWholeWarp, values, 1);
}

__device__ __forceinline__ uint64_t Fold(uint64_t sum, uint64_t secret) { return (sum ^ sum >> 47 ^ secret) * kPrime32_1; }

// Both halves of the 128-bit product, by exclusive or.
__device__ __forceinline__ uint64_t FoldProduct(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), cross = a0 * b1 + (middle & 0xffffffff);
  return (a1 * b1 + (middle >> 32) + (cross >> 32)) ^ (cross << 32 | (low & 0xffffffff));
}

struct Sums {
  uint64_t of[2][kTile][kLanes];
  uint64_t end[kLanes];
  Secret secret;
};

__global__ void __launch_bounds__(kThreads) ChecksumKernel(ChecksumArgs a, Secret given) {
  Sums& sums = BlockShared<Sums>();
  const Secret& secret = sums.secret;
  const uint64_t* const words = static_cast<const uint64_t*>(a.data[blockIdx.x]);
  const int64_t steps = (a.bytes - 1) / (kWords * 8), tiles = (steps + kTile - 1) / kTile;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const bool folds = thread < 32;  // all four groups of the warp do the same
  if (thread == 0) sums.secret = given;
  __syncthreads();
  const uint64_t* const secrets = secret.words + lane;
  uint64_t sum = secret.start[lane];
  for (int64_t tile = 0; tile <= tiles; ++tile) {
    if (folds) {
      const int64_t left = steps - (tile - 1) * kTile;
      const int n = tile == 0 ? 0 : static_cast<int>(left < kTile ? left : kTile);
      for (int i = 0; i < n; ++i) sum = Fold(sum + sums.of[(tile - 1) & 1][i][lane], secret.words[16 + lane]);
    } else if (tile < tiles) {
      const int i = (thread - 32) / kLanes;
      const int64_t step = tile * kTile + i;
      const bool inside = step < steps;
      const uint64_t added = SumStripes(words + (inside ? step : 0) * kWords, inside ? kStripes : 0, lane, secrets);
      if (inside) sums.of[tile & 1][i][lane] = added;
    }
    __syncthreads();
  }
  if (!folds) return;
  const int stripes = static_cast<int>((a.bytes - 1 - steps * kWords * 8) / 64);
  sum += SumStripes(words + steps * kWords, stripes, lane, secrets);
  sum += SumStripes(words + a.bytes / 8 - kLanes, 1, lane, &secret.last[lane]);
  if (thread < kLanes) sums.end[lane] = sum ^ secret.merge[lane];
  __syncwarp();
  if (thread != 0) return;
  uint64_t hash = static_cast<uint64_t>(a.bytes) * kPrime64_1;
  for (int i = 0; i < kLanes; i += 2) hash += FoldProduct(sums.end[i], sums.end[i + 1]);
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  a.sums[blockIdx.x] = hash ^ hash >> 32;
}

}  // namespace

void Checksums(const ChecksumArgs& args, Stream stream) {
  if (args.n > 0) Launch(ChecksumKernel, dim3(args.n), dim3(kThreads), 0, stream, args, MakeSecret());
}

}  // namespace baton::kernels::cuda
