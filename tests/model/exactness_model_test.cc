// Exactness on the real SmolLM2: real weights reach every path that the tiny ones may miss.
#include <gtest/gtest.h>

#include "tests/model/exactness.h"

namespace baton::model {
namespace {

using kernels::DType;
using kernels::Isa;
using kernels::NumericsClass;

constexpr char kModel[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

TEST(ExactnessModelTest, BatchChunkAndPhaseDoNotMatter) {
  const auto file = GgufFile::Open(ModelPath(kModel));
  ASSERT_TRUE(file.ok()) << file.status() << "\nRun scripts/setup first.";
  const auto model = LoadTestModel(*file, {.numerics = NumericsClass::kInt});
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectExact(model->transformer.get(), DType::kF16, 40, {1, 7});
}

TEST(ExactnessModelTest, ThreadsAndInstructionSetDoNotMatter) {
  const auto file = GgufFile::Open(ModelPath(kModel));
  ASSERT_TRUE(file.ok()) << file.status() << "\nRun scripts/setup first.";
  const std::vector<int32_t> ids = RandomIds(6, 49152, 9);
  Logits want;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    for (int threads : {1, 2}) {
      const auto model = LoadTestModel(*file, {.isa = isa, .numerics = NumericsClass::kInt, .num_threads = threads});
      if (!model.ok()) break;  // this CPU lacks the instruction set
      Logits got = WholePrompt(model->transformer.get(), ids, DType::kF16);
      if (want.empty()) want = got;
      ExpectSameBits(want, got, absl::StrCat(model->backend->name(), " with ", threads, " threads"));
    }
  }
}

}  // namespace
}  // namespace baton::model
