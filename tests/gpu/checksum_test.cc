// Checksums of device memory are the host's, and lanes of other threads do what they say beside the backend's calls.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <numeric>
#include <random>
#include <thread>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

using cuda_emulator::Haste;

std::vector<uint64_t> RandomWords(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint64_t> words(n);
  for (uint64_t& word : words) word = rng();
  return words;
}

// Around every edge of the algorithm: stripes of 64 bytes, steps of 1,024, tiles of 32 steps.
TEST(ChecksumTest, IsTheHosts) {
  for (const int64_t bytes : {248, 256, 264, 320, 1016, 1024, 1032, 1088, 2048, 2056, 12'288, 32'768, 32'776, 33'792, 65'536,
                              66'560, 99'336, 131'072}) {
    SCOPED_TRACE(bytes);
    const std::vector<uint64_t> words = RandomWords(3 * bytes / 8, bytes);
    std::vector<uint64_t> want(3);
    ChecksumArgs args = {.n = 3, .bytes = bytes};
    for (int i = 0; i < 3; ++i) {
      args.data[i] = words.data() + i * bytes / 8;
      want[i] = XXH3_64bits(args.data[i], bytes);
    }
    ExpectSameBitsInAnyOrder(want, [&] {
      std::vector<uint64_t> sums(3);
      args.sums = sums.data();
      Checksums(args, nullptr);
      return sums;
    });
  }
}

TEST(ChecksumTest, IsTheHostsForBytesThatMakeLongCarries) {
  for (const uint64_t word : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{0xffffffff}}) {
    const std::vector<uint64_t> words(5000, word);
    uint64_t sum = 0;
    Checksums({.data = {words.data()}, .n = 1, .bytes = 40'000, .sums = &sum}, nullptr);
    EXPECT_EQ(sum, XXH3_64bits(words.data(), 40'000)) << word;
  }
}

class LaneTest : public testing::Test {
 protected:
  ~LaneTest() override { cuda_emulator::SetHaste(Haste::kLazy); }
  CudaBackend backend_;
};

TEST_F(LaneTest, CopiesAndSumsWhatManyBlocksHold) {
  constexpr size_t kBytes = 2056, kBlocks = kMaxChecksums + 3;
  const std::vector<uint64_t> words = RandomWords(kBlocks * kBytes / 8, 7);
  for (const Haste haste : {Haste::kLazy, Haste::kEager, Haste::kRandom}) {
    cuda_emulator::SetHaste(haste, 1);
    const DeviceArray from = DeviceArray::Allocate(&backend_, kBlocks * kBytes).value();
    const DeviceArray to = DeviceArray::Allocate(&backend_, kBlocks * kBytes).value();
    backend_.Upload(from.data(), words.data(), kBlocks * kBytes);
    backend_.Finish();
    const std::unique_ptr<DeviceLane> lane = backend_.CreateLane().value();
    std::vector<const void*> at;
    for (size_t i = 0; i < kBlocks; ++i) at.push_back(static_cast<std::byte*>(to.data()) + i * kBytes);
    ASSERT_TRUE(lane->Copy(to.data(), from.data(), kBlocks * kBytes).ok());
    std::vector<uint64_t> sums(kBlocks);
    ASSERT_TRUE(lane->Checksums(at, kBytes, sums).ok());
    for (size_t i = 0; i < kBlocks; ++i) EXPECT_EQ(sums[i], XXH3_64bits(words.data() + i * kBytes / 8, kBytes)) << i;
    EXPECT_FALSE(lane->CanSum(240));
    EXPECT_FALSE(lane->CanSum(1001));
    EXPECT_FALSE(lane->Checksums(at, 240, sums).ok());
  }
}

// What a lane does is not ordered with the backend's calls, and does not disturb them: also while one is recorded.
TEST_F(LaneTest, WorksBesideTheBackendsCalls) {
  constexpr int kDim = 64, kRounds = 200;
  const DeviceArray x = DeviceArray::Allocate(&backend_, kDim * sizeof(float)).value();
  const DeviceArray one = DeviceArray::Allocate(&backend_, kDim * sizeof(float)).value();
  const std::vector<float> ones(kDim, 1.0f);
  backend_.Upload(one.data(), ones.data(), kDim * sizeof(float));
  backend_.Clear(x.data(), kDim * sizeof(float));
  const DeviceArray block = DeviceArray::Allocate(&backend_, 4096).value();
  const std::vector<uint64_t> words = RandomWords(512, 3);
  backend_.Upload(block.data(), words.data(), 4096);
  const DeviceArray copies = DeviceArray::Allocate(&backend_, 4096 * 3).value();
  backend_.Finish();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const std::unique_ptr<DeviceLane> lane = backend_.CreateLane().value();
      std::byte* const mine = static_cast<std::byte*>(copies.data()) + 4096 * t;
      for (int i = 0; i < kRounds; ++i) {
        ASSERT_TRUE(lane->Copy(mine, block.data(), 4096).ok());
        uint64_t sum = 0;
        const void* const data[] = {mine};
        ASSERT_TRUE(lane->Checksums(data, 4096, {&sum, 1}).ok());
        ASSERT_EQ(sum, XXH3_64bits(words.data(), 4096));
      }
    });
  }
  KvView kv = {static_cast<std::byte*>(block.data()), {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8}};
  const std::vector<int32_t> table(4, 0);
  const std::vector<SequenceChunk> chunks = {{0, 1, 3, table}};
  for (int i = 0; i < kRounds; ++i) {
    backend_.RunPass({chunks, kv, this, 1}, [&] {
      backend_.Add(static_cast<float*>(x.data()), kDim, static_cast<float*>(one.data()), kDim, 1, kDim);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> got(kDim);
  backend_.Download(got.data(), x.data(), kDim * sizeof(float));
  EXPECT_EQ(got, std::vector<float>(kDim, kRounds));
}

}  // namespace
}  // namespace baton::kernels::cuda
