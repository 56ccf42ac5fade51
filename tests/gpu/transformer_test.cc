// The whole forward pass of small models with the CUDA backend on the emulator, whose memory host code cannot touch.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/streams.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/exactness.h"
#include "tests/model/tiny_reference_models.h"

namespace baton::model {
namespace {

using fakes::TinyReferenceModel;
using kernels::DType;
using kernels::NumericsClass;

// A pass takes ten times as long under a sanitizer. More than a block of 16 and than the 8 rows that stream weights.
#ifdef BATON_SANITIZE
constexpr int kPromptTokens = 18, kExactTokens = 17;
const std::vector<int> kChunks = {5};
#else
constexpr int kPromptTokens = 40, kExactTokens = 21;
const std::vector<int> kChunks = {1, 5, 16};
#endif

// Under a sanitizer without the wide ones, which take most of the time and run the same kernels.
std::vector<TinyReferenceModel> Models() {
  std::vector<TinyReferenceModel> models = fakes::TinyReferenceModels();
#ifdef BATON_SANITIZE
  std::erase_if(models, [](const auto& model) { return kernels::BlockElements(model.options.dtype) > 32; });
#endif
  return models;
}

class CudaTransformerTest : public testing::TestWithParam<TinyReferenceModel> {
 protected:
  CudaTransformerTest()
      : file_(GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(GetParam().options), "tiny.gguf")).value()) {
    cuda_emulator::SetHaste(cuda_emulator::Haste::kLazy);
  }

  std::unique_ptr<Transformer> OnEmulator() {
    return Transformer::Load(file_, &backend_, {.max_batch_rows = 64, .device = &backend_}).value();
  }

  GgufFile file_;
  kernels::cuda::CudaBackend backend_;
};
INSTANTIATE_TEST_SUITE_P(Families, CudaTransformerTest, testing::ValuesIn(Models()),
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

}  // namespace
}  // namespace baton::model
