// The whole forward pass of small models with the CUDA backend on the emulator, whose memory host code cannot touch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/emulator/tensor.h"
#include "model/device_demand.h"
#include "tests/gpu/forward_pass_models.h"
#include "tests/gpu/fp8_reference.h"
#include "tests/model/exactness.h"

namespace baton::model {
namespace {

using fakes::TinyReferenceModel;
using kernels::DType;
using kernels::NumericsClass;
using kernels::cuda::WeightStorage;

const std::vector<int> kBatches = kSanitized ? std::vector<int>{17} : std::vector<int>{2, 9, 33, 66};

// Of their lengths as vectors.
double Difference(const Logits& want, const Logits& got) {
  double difference = 0, size = 0;
  for (size_t p = 0; p < want.size(); ++p) {
    for (size_t i = 0; i < want[p].size(); ++i) {
      difference += std::pow(double{want[p][i]} - got[p][i], 2);
      size += std::pow(double{want[p][i]}, 2);
    }
  }
  return std::sqrt(difference / size);
}

class CudaTransformerTest : public testing::TestWithParam<TinyReferenceModel> {
 protected:
  CudaTransformerTest() : file_(TinyFile(GetParam().options)) { cuda_emulator::SetHaste(cuda_emulator::Haste::kLazy); }

  std::unique_ptr<Transformer> OnEmulator(NumericsClass numerics = NumericsClass::kF32,
                                          WeightStorage storage = WeightStorage::kOwnBits) {
    backend_ = std::make_unique<kernels::cuda::CudaBackend>(numerics, /*graphs=*/true, storage);
    return Transformer::Load(file_, backend_.get(), {.max_batch_rows = 66, .device = backend_.get()}).value();
  }

  GgufFile file_;
  std::unique_ptr<kernels::cuda::CudaBackend> backend_;
};
INSTANTIATE_TEST_SUITE_P(Families, CudaTransformerTest, testing::ValuesIn(ForwardPassModels()),
                         [](const auto& info) { return std::string(info.param.name); });

// Its products have at most 512 inputs, so each order is the CPU's.
TEST_P(CudaTransformerTest, LogitsHaveTheBitsOfTheCpu) {
  const TestModel cpu = LoadTestModel(file_, {.numerics = NumericsClass::kF32, .num_threads = 1}).value();
  const std::vector<int32_t> ids = RandomIds(kPromptTokens, cpu.transformer->vocab_size(), 1);
  for (const DType kv_dtype : {DType::kF16, DType::kBF16}) {
    ExpectSameBits(WholePrompt(cpu.transformer.get(), ids, kv_dtype), WholePrompt(OnEmulator().get(), ids, kv_dtype),
                   GetParam().name);
  }
}

// What the tests above rely on: a copy that is forgotten ends the process, in either direction.
TEST(EmulatedDeviceDeathTest, HostCodeCannotTouchDeviceMemoryNorKernelsTheHosts) {
  kernels::cuda::CudaBackend backend;
  const kernels::DeviceArray x = kernels::DeviceArray::Allocate(&backend, 64 * sizeof(float)).value();
  float* const device = static_cast<float*>(x.data());
  std::vector<float> host(64, 1.0f);
  backend.Upload(device, host.data(), 64 * sizeof(float));
  backend.Add(device, 64, device, 64, 1, 64);
  backend.Download(host.data(), device, 64 * sizeof(float));
  EXPECT_EQ(host, std::vector<float>(64, 2.0f));
  EXPECT_DEATH(host[0] = *static_cast<volatile float*>(device), "");
  EXPECT_DEATH(*static_cast<volatile float*>(device) = 1, "");
  EXPECT_DEATH(backend.Add(device, 64, host.data(), 64, 1, 64), "not the device's");
}

// Nor when the device does what it was given.
TEST_P(CudaTransformerTest, BatchChunkAndPhaseDoNotMatter) {
  cuda_emulator::SetHaste(cuda_emulator::Haste::kRandom, 1);
  ExpectExact(OnEmulator().get(), DType::kF16, kExactTokens, kChunks);
}

TEST_P(CudaTransformerTest, BatchChunkAndPhaseDoNotMatterOnTensorCores) {
  ExpectExact(OnEmulator(NumericsClass::kBf16).get(), DType::kF16, kExactTokens, kChunks);
}

// Nor, on the emulator, by which instruction: so these tests hold for GPUs that have the one or the other.
TEST_P(CudaTransformerTest, EitherInstructionOfTensorCoresHasTheSameBits) {
  std::vector<Logits> logits;
  for (const bool wgmma : {false, true}) {
    cuda_emulator::SetHasWgmma(wgmma);
    const std::unique_ptr<Transformer> model = OnEmulator(NumericsClass::kBf16);
    logits.push_back(WholePrompt(model.get(), RandomIds(kPromptTokens, model->vocab_size(), 1), DType::kBF16));
  }
  ExpectSameBits(logits[0], logits[1], GetParam().name);
}

// A sequence alone has the bits that it has in batches of each kernel's size: up to 8, 16, 64 and more rows.
TEST_P(CudaTransformerTest, BatchOfAnySizeHasTheSameBitsOnTensorCores) {
  const std::unique_ptr<Transformer> model = OnEmulator(NumericsClass::kBf16);
  constexpr int kTokens = 2;
  const std::vector<int32_t> ids = RandomIds(kTokens, model->vocab_size(), 4);
  const Logits want = WholePrompt(model.get(), ids, DType::kBF16);
  for (const int batch : kBatches) {
    TestKvPool pool(model->KvLayoutFor(DType::kBF16, 16), batch, model->device());
    std::vector<TestSequence> sequences;
    for (int i = 0; i < batch; ++i) {
      sequences.push_back({.token_ids = i == batch / 2 ? ids : RandomIds(kTokens, model->vocab_size(), 100 + i)});
    }
    std::vector<std::pair<TestSequence*, int>> work;
    for (TestSequence& sequence : sequences) work.emplace_back(&sequence, 1);
    for (int step = 0; step < kTokens; ++step) Step(model.get(), &pool, work);
    ExpectSameBits(want, sequences[batch / 2].logits, "a batch of " + std::to_string(batch));
  }
}

// Near the class f32, as bfloat16's 8 bits have it, and not the same.
TEST_P(CudaTransformerTest, TensorCoresComputeWhatTheCpuDoes) {
  const TestModel cpu = LoadTestModel(file_, {.numerics = NumericsClass::kF32, .num_threads = 1}).value();
  const std::vector<int32_t> ids = RandomIds(kPromptTokens, cpu.transformer->vocab_size(), 1);
  const Logits want = WholePrompt(cpu.transformer.get(), ids, DType::kBF16);
  const Logits got = WholePrompt(OnEmulator(NumericsClass::kBf16).get(), ids, DType::kBF16);
  EXPECT_GT(Difference(want, got), 0);
  EXPECT_LT(Difference(want, got), 0.05);
}

// Weights of 8 bits: as exact among themselves as any, and as near to the CPU with the same weights as bfloat16 has it.
TEST_P(CudaTransformerTest, Fp8WeightsAreNearTheCpusAndBatchChunkAndPhaseDoNotMatter) {
  kernels::cuda::Fp8Reference reference;
  const std::unique_ptr<Transformer> cpu = Transformer::Load(file_, &reference, {.max_batch_rows = 66}).value();
  const std::vector<int32_t> ids = RandomIds(kPromptTokens, cpu->vocab_size(), 1);
  const Logits want = WholePrompt(cpu.get(), ids, DType::kBF16);
  const std::unique_ptr<Transformer> model = OnEmulator(NumericsClass::kBf16, WeightStorage::kFp8);
  const double difference = Difference(want, WholePrompt(model.get(), ids, DType::kBF16));
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.05);
  ExpectExact(model.get(), DType::kF16, kExactTokens, {kChunks.back()});
}

// Formats that kernels read and ones that become F32; heads that are the embedding or not; one angle table or two.
std::vector<fakes::TinyModelOptions> ModelsOfAllFormats() {
  using fakes::TinyFamily;
  std::vector<fakes::TinyModelOptions> models = {{.family = TinyFamily::kGemma3, .dtype = DType::kBF16, .num_layers = 6},
                                                 {.family = TinyFamily::kQwen2, .dtype = DType::kF16, .tied_head = false}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_1,
                            DType::kQ4_K, DType::kQ6_K}) {
    for (const bool tied : {true, false}) models.push_back({.dtype = dtype, .num_layers = 1, .tied_head = tied});
  }
  return models;
}

TEST(DeviceDemandTest, IsWhatLoadingTakes) {
  for (const fakes::TinyModelOptions& options : ModelsOfAllFormats()) {
    for (const WeightStorage storage : {WeightStorage::kOwnBits, WeightStorage::kFp8}) {
      SCOPED_TRACE(std::string(kernels::Name(options.dtype)) + (options.tied_head ? " tied" : "") +
                   (storage == WeightStorage::kFp8 ? " fp8" : ""));
      const GgufFile file = TinyFile(options);
      kernels::cuda::CudaBackend backend(NumericsClass::kBf16, /*graphs=*/true, storage);
      const ModelConfig config = ReadConfig(file).value();
      constexpr int kContext = 300;
      const DeviceDemand demand = DeviceDemandOf(file, config, kContext, backend);
      const uint64_t demanded = demand.device_bytes(1);
      const uint64_t before = backend.FreeBytes().value();
      const auto model =
          Transformer::Load(file, &backend, {.max_batch_rows = 16, .max_context = kContext, .device = &backend}).value();
      const uint64_t took = before - backend.FreeBytes().value();
      const MemoryLedger ledger = model->memory();
      const uint64_t frequencies = (config.rope_dim / 2) * 2 * sizeof(double);  // the host's
      EXPECT_EQ(demanded + demand.host_bytes,
                ledger.weight_bytes + ledger.embedding_bytes + ledger.vector_bytes - frequencies);
      // Beside the scratch, and gaps: the emulator's allocations are whole multiples of 256 bytes, with as many between.
      EXPECT_GE(took, demanded + ledger.scratch_bytes);
      EXPECT_LE(took, demanded + ledger.scratch_bytes + 512 * 2 * (file.tensors().size() + 4));
      EXPECT_EQ(demand.host_bytes > 0, !options.tied_head && kernels::cuda::MatrixStep(options.dtype) == 0);
    }
  }
}

// Where they lie on the device, and where they do not.
TEST(EmbeddingTest, RowsThatAreNotTheHeadsHaveTheBitsOfTheCpu) {
  for (const fakes::TinyModelOptions& options : ModelsOfAllFormats()) {
    fakes::TinyModelOptions untied = options;
    untied.tied_head = false;
    SCOPED_TRACE(kernels::Name(untied.dtype));
    const GgufFile file = TinyFile(untied);
    const TestModel cpu = LoadTestModel(file, {.numerics = NumericsClass::kF32, .num_threads = 1}).value();
    kernels::cuda::CudaBackend backend;
    const auto model = Transformer::Load(file, &backend, {.max_batch_rows = 16, .device = &backend}).value();
    const std::vector<int32_t> ids = RandomIds(9, model->vocab_size(), 5);
    ExpectSameBits(WholePrompt(cpu.transformer.get(), ids, DType::kF16), WholePrompt(model.get(), ids, DType::kF16), "untied");
  }
}

TEST(EmbeddingTest, RowsKeepTheirBitsWhereWeightsBecomeFp8) {
  kernels::cuda::CudaBackend backend(NumericsClass::kBf16, /*graphs=*/true, WeightStorage::kFp8);
  constexpr int kRows = 37, kCols = 96;
  uint64_t rng = 3;
  const std::string bytes = fakes::RandomBlocks(DType::kQ8_0, kRows * kCols, 1, &rng);
  const auto packed = backend.PackRows({DType::kQ8_0, kRows, kCols, bytes.data()}).value();
  ASSERT_NE(packed, nullptr);
  const std::vector<int32_t> rows = {36, 0, 5, 36};
  const kernels::DeviceArray out = kernels::DeviceArray::Allocate(&backend, rows.size() * kCols * sizeof(float)).value();
  backend.ReadRows(*packed, rows, 1, static_cast<float*>(out.data()));
  std::vector<float> got(rows.size() * kCols), want(kCols);
  backend.Download(got.data(), out.data(), got.size() * sizeof(float));
  for (size_t r = 0; r < rows.size(); ++r) {
    kernels::DequantizeRow(DType::kQ8_0, bytes.data() + rows[r] * (kCols / 32 * 34), want.data(), kCols);
    EXPECT_EQ(std::memcmp(got.data() + r * kCols, want.data(), kCols * sizeof(float)), 0) << r;
  }
}

// Token ids and the pass's inputs go up, logits come down; angles went before, with the first of their positions.
TEST(DevicePassTest, SendsNeitherEmbeddingsNorAngles) {
  const fakes::TinyModelOptions options = {
      .family = fakes::TinyFamily::kGemma3, .dtype = DType::kQ8_0, .num_layers = 6, .tied_head = false};
  const GgufFile file = TinyFile(options);
  kernels::cuda::CudaBackend backend;
  const auto model = Transformer::Load(file, &backend, {.max_batch_rows = 16, .device = &backend}).value();
  TestKvPool pool(model->KvLayoutFor(DType::kF16, 16), 4, model->device());
  TestSequence sequence = {.token_ids = RandomIds(12, model->vocab_size(), 6)};
  Step(model.get(), &pool, {{&sequence, 4}});
  for (int step = 0; step < 5; ++step) {
    const uint64_t before = cuda_emulator::TheCounts().copies;
    Step(model.get(), &pool, {{&sequence, 1}});
    EXPECT_EQ(cuda_emulator::TheCounts().copies - before, 3u) << step;
  }
}

}  // namespace
}  // namespace baton::model
