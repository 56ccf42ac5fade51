// One model over several GPUs, here emulated ones: none can touch another's memory, and streams are as late as they may be.
// Bits depend on the number of slices and on nothing else, and blocks on the host are the same bytes for any number of ranks.
#include "kernels/cuda/tensor_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/emulator/host_memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "model/device_demand.h"
#include "tests/gpu/forward_pass_models.h"
#include "tests/model/exactness.h"

namespace baton::model {
namespace {

using cuda_emulator::Haste;
using fakes::TinyReferenceModel;
using kernels::DType;
using kernels::NumericsClass;
using kernels::TensorParallel;
using kernels::cuda::CudaBackend;
using kernels::cuda::TensorParallelBackend;
using kernels::cuda::WeightStorage;

constexpr int kSlices = 4;
const std::vector<int> kBatches = kSanitized ? std::vector<int>{9} : std::vector<int>{2, 9, 33};

// The tiny models with four KV heads and a feed-forward of four slices.
std::vector<TinyReferenceModel> Models() {
  std::vector<TinyReferenceModel> models = ForwardPassModels();
  for (TinyReferenceModel& model : models) {
    model.options.num_kv_heads = 4;
    model.options.ffn_dim = kernels::BlockElements(model.options.dtype) == 256 ? 512 : 128;
  }
  return models;
}

// A model and the devices that it is on.
struct Split {
  Split(const GgufFile& file, const TensorParallel& split, NumericsClass numerics = NumericsClass::kF32,
        WeightStorage storage = WeightStorage::kOwnBits)
      : backend(TensorParallelBackend::Create(numerics, split, storage).value()),
        model(Transformer::Load(file, backend.get(), {.max_batch_rows = 66, .device = backend.get()}).value()) {}
  std::unique_ptr<TensorParallelBackend> backend;
  std::unique_ptr<Transformer> model;
};

class TensorParallelTest : public testing::TestWithParam<TinyReferenceModel> {
 protected:
  TensorParallelTest() : file_(TinyFile(GetParam().options)) { cuda_emulator::SetHaste(Haste::kLazy); }
  ~TensorParallelTest() override { cuda_emulator::SetHaste(Haste::kLazy); }
  static bool Wide() { return kernels::BlockElements(GetParam().options.dtype) == 256; }
  std::vector<int32_t> Ids(int n) const { return RandomIds(n, ReadConfig(file_).value().vocab_size, 1); }
  const GgufFile file_;
};
INSTANTIATE_TEST_SUITE_P(Families, TensorParallelTest, testing::ValuesIn(Models()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TensorParallelTest, OneSliceOfOneRankIsTheBackendItself) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kBf16}) {
    CudaBackend plain(numerics);
    const auto model = Transformer::Load(file_, &plain, {.max_batch_rows = 66, .device = &plain}).value();
    ExpectSameBits(WholePrompt(model.get(), Ids(kPromptTokens), DType::kF16),
                   WholePrompt(Split(file_, {1, 1}, numerics).model.get(), Ids(kPromptTokens), DType::kF16), GetParam().name);
  }
}

// Slices are another order of sums, near the one without; ranks are not.
TEST_P(TensorParallelTest, RanksDoNotMatterAndSlicesAreAClass) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kBf16}) {
    const Logits unsliced = WholePrompt(Split(file_, {1, 1}, numerics).model.get(), Ids(kPromptTokens), DType::kF16);
    const Logits want = WholePrompt(Split(file_, {1, kSlices}, numerics).model.get(), Ids(kPromptTokens), DType::kF16);
    bool differ = false;
    for (size_t p = 0; p < want.size(); ++p) {
      for (size_t i = 0; i < want[p].size(); ++i) {
        differ |= want[p][i] != unsliced[p][i];
        ASSERT_NEAR(want[p][i], unsliced[p][i], numerics == NumericsClass::kF32 ? 1e-3 : 0.3);
      }
    }
    // Few products of short codes may add up without rounding, in any order.
    EXPECT_TRUE(differ || GetParam().options.dtype != DType::kF32 || numerics != NumericsClass::kF32);
    for (const int ranks : {2, 4}) {
      cuda_emulator::SetHaste(ranks == 2 ? Haste::kLazy : Haste::kRandom, 7);
      ExpectSameBits(want, WholePrompt(Split(file_, {ranks, kSlices}, numerics).model.get(), Ids(kPromptTokens), DType::kF16),
                     absl::StrCat(GetParam().name, " on ", ranks));
    }
  }
}

TEST_P(TensorParallelTest, BatchChunkAndPhaseDoNotMatterOnOneRankNorOnFour) {
  for (const int ranks : {1, 4}) {
    cuda_emulator::SetHaste(Haste::kRandom, static_cast<uint32_t>(ranks));
    const Split split(file_, {ranks, kSlices}, ranks == 1 ? NumericsClass::kF32 : NumericsClass::kBf16);
    ExpectExact(split.model.get(), DType::kF16, kExactTokens, kChunks);
  }
}

// A sequence alone on one rank has the bits that it has in batches on two: with decode steps that are graphs, and that are not.
TEST_P(TensorParallelTest, BatchOfAnySizeHasTheSameBits) {
  constexpr int kTokens = 3;
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kBf16}) {
    const Logits want = WholePrompt(Split(file_, {1, kSlices}, numerics).model.get(), Ids(kTokens), DType::kBF16);
    for (const int ranks : {1, 2}) {
      Split split(file_, {ranks, kSlices}, numerics);
      for (const int batch : kBatches) {
        if (Wide() && batch != 9) continue;  // they take ten times as long
        TestKvPool pool(split.model->KvLayoutFor(DType::kBF16, 16), batch, split.model->device());
        std::vector<TestSequence> sequences;
        for (int i = 0; i < batch; ++i) {
          sequences.push_back({.token_ids = i == batch / 2 ? Ids(kTokens)
                                                           : RandomIds(kTokens, split.model->vocab_size(), 100 + i)});
        }
        std::vector<std::pair<TestSequence*, int>> work;
        for (TestSequence& sequence : sequences) work.emplace_back(&sequence, 1);
        for (int step = 0; step < kTokens; ++step) Step(split.model.get(), &pool, work);
        ExpectSameBits(want, sequences[batch / 2].logits, absl::StrCat("a batch of ", batch, " on ", ranks));
      }
    }
  }
}

// Before anything is read.
TEST_P(TensorParallelTest, WhatWeightsTakeIsKnownFromTheHeader) {
  for (const int ranks : {1, 4}) {
    const Split split(file_, {ranks, kSlices});
    const MemoryLedger memory = split.model->memory();
    const DeviceDemand demand = DeviceDemandOf(file_, split.model->config(), split.model->max_context(), *split.backend);
    EXPECT_EQ(demand.split_bytes + demand.head_bytes, memory.weight_bytes);
    EXPECT_EQ(demand.embedding_bytes + demand.host_bytes, memory.embedding_bytes);
  }
}

TEST_P(TensorParallelTest, WeightsInFp8HaveTheSameBitsOnAnyNumberOfRanks) {
  const auto logits = [&](int ranks) {
    return WholePrompt(Split(file_, {ranks, kSlices}, NumericsClass::kBf16, WeightStorage::kFp8).model.get(),
                       Ids(kPromptTokens), DType::kF16);
  };
  ExpectSameBits(logits(1), logits(4), GetParam().name);
}

class TensorParallelSpaceTest : public testing::Test {
 protected:
  TensorParallelSpaceTest() { cuda_emulator::SetHaste(Haste::kLazy); }
  ~TensorParallelSpaceTest() override {
    cuda_emulator::SetNumDevices(cuda_emulator::kMaxDevices);
    cuda_emulator::SetOddDevice(-1, 0);
  }
  static absl::StatusCode CodeOf(const TensorParallel& split) {
    return TensorParallelBackend::Create(NumericsClass::kF32, split).status().code();
  }
};

TEST_F(TensorParallelSpaceTest, NumbersAndDevicesThatDoNotFitAreRefused) {
  for (const TensorParallel& split : {TensorParallel{0, 1}, {3, 3}, {1, 3}, {4, 2}, {2, 6}, {1, 64}, {-2, 2}}) {
    EXPECT_EQ(CodeOf(split), absl::StatusCode::kInvalidArgument) << split.ranks << " of " << split.slices;
  }
  EXPECT_EQ(CodeOf({8, 32}), absl::StatusCode::kOk);
  cuda_emulator::SetNumDevices(3);
  EXPECT_EQ(CodeOf({4, 4}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf({2, 4}), absl::StatusCode::kOk);
  cuda_emulator::SetOddDevice(1, 80);
  EXPECT_EQ(CodeOf({2, 4}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf({1, 4}), absl::StatusCode::kOk);
}

TEST_F(TensorParallelSpaceTest, ModelsThatDoNotSplitAreRefusedWithTheTensorOrTheHeads) {
  const auto load = [](const TensorParallel& split, fakes::TinyModelOptions options) {
    const GgufFile file = TinyFile(options);
    const auto backend = TensorParallelBackend::Create(NumericsClass::kF32, split).value();
    return Transformer::Load(file, backend.get(), {.max_batch_rows = 2, .device = backend.get()}).status();
  };
  EXPECT_TRUE(load({4, 4}, {.num_kv_heads = 4, .ffn_dim = 128}).ok());
  const absl::Status ffn = load({4, 4}, {.num_kv_heads = 4, .ffn_dim = 96});
  EXPECT_EQ(ffn.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(ffn.message().find("ffn_down.weight: its 96 inputs"), std::string::npos) << ffn;
  const auto backend = TensorParallelBackend::Create(NumericsClass::kF32, {4, 4}).value();
  kernels::KvLayout layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 16};
  EXPECT_EQ(backend->CheckLayout(layout).code(), absl::StatusCode::kFailedPrecondition);
  layout.num_kv_heads = 8;
  EXPECT_TRUE(backend->CheckLayout(layout).ok());
  layout.head_dim = 12;
  EXPECT_EQ(backend->CheckLayout(layout).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TensorParallelSpaceTest, SplitWeightsAreHeldOnceAndOthersByEachRank) {
  const std::vector<float> values(128 * 256, 0.5f);
  for (const auto& [split, times] : {std::pair{kernels::WeightSplit::kNone, 4u}, {kernels::WeightSplit::kRows, 1u},
                                     {kernels::WeightSplit::kColumns, 1u}}) {
    const kernels::HostTensor tensor = {.dtype = DType::kF32, .rows = 128, .cols = 256, .data = values.data(), .split = split};
    const auto backend = TensorParallelBackend::Create(NumericsClass::kF32, {4, 4}).value();
    const auto matrix = backend->PackWeights(tensor).value();
    EXPECT_EQ(matrix->memory_bytes(), times * values.size() * sizeof(float));
    EXPECT_EQ(backend->PackedBytes(tensor), matrix->memory_bytes());
    EXPECT_EQ(matrix->rows(), 128);
    EXPECT_EQ(matrix->cols(), 256);
  }
}

// With what each rank has of its own: norms, biases, angles and activations.
TEST_F(TensorParallelSpaceTest, LoadingTakesWhatIsForetoldOfAllDevices) {
  const GgufFile file = TinyFile({.context_length = 16384, .num_kv_heads = 4, .ffn_dim = 128});
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    const auto backend = TensorParallelBackend::Create(NumericsClass::kF32, {ranks, kSlices}).value();
    const uint64_t before = backend->FreeBytes().value();
    const auto model = Transformer::Load(file, backend.get(), {.max_batch_rows = 16, .device = backend.get()}).value();
    const uint64_t took = before - backend->FreeBytes().value();
    const DeviceDemand demand = DeviceDemandOf(file, model->config(), model->max_context(), *backend);
    const uint64_t foretold = demand.device_bytes(ranks) + ranks * model->memory().scratch_bytes;
    // The emulator's allocations are whole multiples of 256 bytes, with as many between.
    const uint64_t gaps = 512 * (ranks + kSlices) * 2 * (file.tensors().size() + 4);
    ASSERT_GT(demand.array_bytes, gaps) << "too few angles to tell once from twice";
    EXPECT_GE(took, foretold);
    EXPECT_LE(took, foretold + gaps);
  }
}

// Blocks that went to the ranks come back as they were, by either kind of copy, and so do their clones.
TEST_F(TensorParallelSpaceTest, BlocksAreTakenApartAndPutTogether) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const kernels::KvLayout layout = {.dtype = dtype, .block_size = 3, .num_layers = 3, .num_kv_heads = 8, .head_dim = 8};
    constexpr int kBlocks = 5;
    const size_t bytes = layout.block_bytes();
    std::vector<std::byte> image(kBlocks * bytes), back(kBlocks * bytes);
    for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>(i * 131 >> 3);
    for (const int ranks : {1, 2, 8}) {
      SCOPED_TRACE(ranks);
      const auto space = TensorParallelBackend::Create(NumericsClass::kF32, {ranks, 8}).value();
      const auto memory = kernels::DeviceArray::AllocateBlocks(space.get(), layout, kBlocks).value();
      auto* const base = static_cast<std::byte*>(memory.data());
      space->Upload(base, image.data(), image.size());
      space->Download(back.data(), base, back.size());
      EXPECT_TRUE(back == image);

      ASSERT_TRUE(space->Pin(back.data(), back.size()).ok());
      space->CopyWithin(base + 4 * bytes, base + bytes, bytes);
      space->Clear(base + 2 * bytes, bytes);
      const kernels::DeviceSpace::Copy down[] = {{back.data() + 2 * bytes, base + 2 * bytes, bytes},
                                                 {back.data() + 4 * bytes, base + 4 * bytes, bytes}};
      space->WaitCopies(space->StartDownloads(down));
      EXPECT_TRUE(std::equal(back.begin() + 4 * bytes, back.end(), image.begin() + bytes));
      EXPECT_EQ(std::count(back.begin() + 2 * bytes, back.begin() + 3 * bytes, std::byte{0}), static_cast<ptrdiff_t>(bytes));
      const kernels::DeviceSpace::Copy up[] = {{base, back.data() + 4 * bytes, bytes}};
      const auto id = space->StartUploads(up);
      space->WaitCopies(id);
      EXPECT_TRUE(space->CopiesDone(id));
      space->Download(back.data(), base, bytes);
      EXPECT_TRUE(std::equal(back.begin(), back.begin() + bytes, image.begin() + bytes));
      space->Unpin(back.data());
    }
  }
}

// A prompt's blocks, downloaded, are the same bytes from any number of ranks.
TEST_F(TensorParallelSpaceTest, BlocksOfAModelAreTheSameBytesForAnyNumberOfRanks) {
  const GgufFile file = TinyFile({.num_kv_heads = 4, .ffn_dim = 128});
  std::vector<std::vector<std::byte>> blocks;
  for (const int ranks : {1, 2, 4}) {
    Split split(file, {ranks, kSlices});
    TestKvPool pool(split.model->KvLayoutFor(DType::kF16, 16), 2, split.model->device());
    TestSequence sequence{.token_ids = RandomIds(21, split.model->vocab_size(), 1)};
    Step(split.model.get(), &pool, {{&sequence, 21}});
    blocks.emplace_back(2 * pool.view().layout.block_bytes());
    split.backend->Download(blocks.back().data(), pool.view().base, blocks.back().size());
  }
  EXPECT_TRUE(blocks[1] == blocks[0]);
  EXPECT_TRUE(blocks[2] == blocks[0]);
}

// What the tests above rely on: no device reads another's memory, nor a stream takes another's work.
TEST(EmulatedDevicesDeathTest, KernelsReachTheirOwnDeviceOnly) {
  using kernels::cuda::UseDevice;
  CudaBackend first;
  const auto x = kernels::DeviceArray::Allocate(&first, 64 * sizeof(float)).value();
  float* const on_first = static_cast<float*>(x.data());
  ASSERT_TRUE(UseDevice(1).ok());
  {
    CudaBackend second;
    const auto y = kernels::DeviceArray::Allocate(&second, 64 * sizeof(float)).value();
    float* const on_second = static_cast<float*>(y.data());
    EXPECT_DEATH(second.Add(on_second, 64, on_first, 64, 1, 64), "not the device's");
    EXPECT_DEATH((kernels::cuda::Add(on_second, 64, on_first, 64, 1, 64, second.stream()), second.Finish()), "");
    EXPECT_DEATH(kernels::cuda::Add(on_second, 64, on_second, 64, 1, 64, first.stream()), "another device");
    second.Clear(on_second, 64 * sizeof(float));
    second.Finish();
  }
  ASSERT_TRUE(UseDevice(0).ok());
  first.Clear(on_first, 64 * sizeof(float));
  first.Finish();
  cuda_emulator::SetNumDevices(2);
  EXPECT_FALSE(UseDevice(2).ok());
  cuda_emulator::SetNumDevices(cuda_emulator::kMaxDevices);
}

}  // namespace
}  // namespace baton::model
