// The packaged models against Hugging Face transformers (issue "Shows" 2): log-probabilities of the f32 path within
// 1e-3, perplexity of the integer path within 1 %.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/model/logits_golden.h"

namespace baton::model {
namespace {

struct Packaged {
  const char* name;
  const char* file;
};

class PackagedModelTest : public testing::TestWithParam<Packaged> {
 protected:
  void SetUp() override {
    golden_ = ReadGolden(absl::StrCat("tests/reference/logits_", GetParam().name, ".json"));
    ASSERT_EQ(golden_.size(), 21u);  // 20 prompts and the perplexity text
    auto file = GgufFile::Open(ModelPath(GetParam().file));
    ASSERT_TRUE(file.ok()) << file.status() << "\nRun scripts/setup first.";
    file_ = std::make_unique<GgufFile>(*std::move(file));
  }
  TestModel Load(kernels::NumericsClass numerics) {
    auto model = LoadTestModel(*file_, {.numerics = numerics}, 128);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : TestModel();
  }

  std::vector<GoldenCase> golden_;
  std::unique_ptr<GgufFile> file_;
};

TEST_P(PackagedModelTest, AgreesWithTransformersAndIntPathKeepsPerplexity) {
  double f32_nll = 0;
  {
    const TestModel model = Load(kernels::NumericsClass::kF32);
    ASSERT_NE(model.transformer, nullptr);
    double worst = 0;
    for (const GoldenCase& c : golden_) {
      const double error = MaxLogprobError(model.transformer.get(), c, 128);
      EXPECT_LE(error, 1e-3) << c.token_ids.size() << " tokens";
      worst = std::max(worst, error);
    }
    f32_nll = MeanNll(model.transformer.get(), golden_.back().token_ids, kernels::DType::kF32, 128);
    EXPECT_NEAR(f32_nll, golden_.back().mean_nll, 1e-4);
    std::printf("%s: largest difference of log-probabilities %.2e, perplexity %.4f (transformers %.4f)\n",
                GetParam().name, worst, std::exp(f32_nll), std::exp(golden_.back().mean_nll));
  }
  const TestModel model = Load(kernels::NumericsClass::kInt);
  ASSERT_NE(model.transformer, nullptr);
  const double int_nll = MeanNll(model.transformer.get(), golden_.back().token_ids, kernels::DType::kF16, 128);
  const double change = std::exp(int_nll - f32_nll) - 1;
  std::printf("%s: perplexity of the integer path with f16 KV %.4f, %+.3f %%\n", GetParam().name, std::exp(int_nll),
              100 * change);
  EXPECT_LE(std::fabs(change), 0.01);
}

INSTANTIATE_TEST_SUITE_P(All, PackagedModelTest,
                         testing::Values(Packaged{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
                                         Packaged{"gemma3", "gemma-3-270m-q4_k_m.gguf"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::model
