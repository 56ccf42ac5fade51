// Every family against Hugging Face transformers, on tiny models made here: what one family does differently (biases,
// QK norm, rotary styles and scalings, windows, post norms, an untied head) cannot be wrong without failing here.
#include <gtest/gtest.h>

#include <string>

#include "tests/model/logits_golden.h"
#include "tests/model/tiny_reference_models.h"

namespace baton::model {
namespace {

class TinyReferenceTest : public testing::TestWithParam<fakes::TinyReferenceModel> {};

TEST_P(TinyReferenceTest, LogProbabilitiesAgreeWithTransformers) {
  const std::string name = GetParam().name;
  const auto golden = ReadGolden("tests/reference/logits_" + name + ".json");
  ASSERT_EQ(golden.size(), 13u);
  const auto file = GgufFile::Parse(RandomAccessFile::OfBytes(fakes::TinyGguf(GetParam().options), name));
  ASSERT_TRUE(file.ok()) << file.status();
  auto model = LoadTestModel(*file, {.numerics = kernels::NumericsClass::kF32, .num_threads = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  double worst = 0;
  for (const GoldenCase& c : golden) {
    const double error = MaxLogprobError(model->transformer.get(), c, 37);
    EXPECT_LE(error, 1e-3) << c.token_ids.size() << " tokens";
    worst = std::max(worst, error);
  }
  RecordProperty("max_logprob_error", std::to_string(worst));
  std::printf("%s: largest difference of log-probabilities %.2e\n", name.c_str(), worst);
}

INSTANTIATE_TEST_SUITE_P(All, TinyReferenceTest, testing::ValuesIn(fakes::TinyReferenceModels()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::model
