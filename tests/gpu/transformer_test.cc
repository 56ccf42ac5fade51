// The whole forward pass of small models with the CUDA backend on the emulator.
#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/exactness.h"
#include "tests/model/tiny_reference_models.h"

namespace baton::model {
namespace {

using fakes::TinyReferenceModel;
using kernels::DType;
using kernels::NumericsClass;

class CudaTransformerTest : public testing::TestWithParam<TinyReferenceModel> {
 protected:
  CudaTransformerTest()
      : file_(GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(GetParam().options), "tiny.gguf")).value()) {}

  std::unique_ptr<Transformer> OnEmulator() {
    return Transformer::Load(file_, &backend_, {.max_batch_rows = 64}).value();
  }

  GgufFile file_;
  kernels::cuda::CudaBackend backend_;
};
INSTANTIATE_TEST_SUITE_P(Families, CudaTransformerTest, testing::ValuesIn(fakes::TinyReferenceModels()),
                         [](const auto& info) { return std::string(info.param.name); });

// Its products have at most 512 inputs, so each order is the CPU's.
TEST_P(CudaTransformerTest, LogitsHaveTheBitsOfTheCpu) {
  const TestModel cpu = LoadTestModel(file_, {.numerics = NumericsClass::kF32, .num_threads = 1}).value();
  const std::vector<int32_t> ids = RandomIds(40, cpu.transformer->vocab_size(), 1);
  for (const DType kv_dtype : {DType::kF16, DType::kBF16}) {
    ExpectSameBits(WholePrompt(cpu.transformer.get(), ids, kv_dtype), WholePrompt(OnEmulator().get(), ids, kv_dtype),
                   GetParam().name);
  }
}

TEST_P(CudaTransformerTest, BatchChunkAndPhaseDoNotMatter) {
  ExpectExact(OnEmulator().get(), DType::kF16, 21, {1, 5, 16});
}

}  // namespace
}  // namespace baton::model
