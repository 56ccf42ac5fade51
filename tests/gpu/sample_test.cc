// Sampling on the emulator against engine/sampler.h.
#include <cmath>
#include <limits>
#include <set>

#include "engine/sampler.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

std::vector<int32_t> RunSample(const std::vector<float>& logits, int vocab, const std::vector<SampleRow>& rows) {
  const int m = static_cast<int>(logits.size()) / vocab;
  std::vector<float> maxima(m, NAN);
  std::vector<double> sums(m * NumSampleChunks(vocab), NAN);
  std::vector<int32_t> ids(m, -7);
  Sample({.logits = logits.data(), .logits_stride = vocab, .m = m, .vocab_size = vocab,
          .rows = rows.empty() ? nullptr : rows.data(), .maxima = maxima.data(), .chunk_sums = sums.data(),
          .token_ids = ids.data()},
         nullptr);
  return ids;
}

std::vector<int32_t> Expected(const std::vector<float>& logits, int vocab, const std::vector<SampleRow>& rows) {
  engine::Sampler sampler(vocab);
  std::vector<int32_t> ids;
  for (size_t r = 0; r < logits.size() / vocab; ++r) {
    const SampleRow row = rows.empty() ? SampleRow() : rows[r];
    engine::SamplingParams params;
    params.temperature = row.temperature;
    params.min_p = row.min_p;
    params.seed = row.seed;
    params.top_k = 0;
    params.top_p = 1.0f;
    engine::SampleContext context;
    context.params = &params;
    context.choice_index = static_cast<int>(row.choice_index);
    context.position = row.position;
    ids.push_back(sampler.Sample({logits.data() + r * vocab, static_cast<size_t>(vocab)}, context).value().token_id);
  }
  return ids;
}

TEST(SampleTest, GreedyTakesTheLargestAndOfEqualsTheLowestId) {
  for (const int vocab : {1, 255, 1500}) {
    std::vector<float> logits = RandomFloats(3 * vocab, 1);
    logits[vocab / 2] = logits[vocab - 1] = 9.0f;  // of the first row
    logits[vocab] = -0.0f;
    ExpectSameBitsInAnyOrder(Expected(logits, vocab, {}), [&] { return RunSample(logits, vocab, {}); });
    EXPECT_EQ(RunSample(logits, vocab, {})[0], vocab / 2);
  }
}

TEST(SampleTest, AVocabularyOfOneChunkDrawsTheHostsTokens) {
  constexpr int kVocab = 997, kRows = 40;
  const std::vector<float> logits = RandomFloats(kRows * kVocab, 3, 2.0f);
  std::vector<SampleRow> rows;
  for (uint32_t r = 0; r < kRows; ++r) {
    rows.push_back({.temperature = 0.25f * (r % 6), .min_p = r % 4 == 1 ? 0.05f : 0, .seed = r * 0x9e3779b97f4a7c15,
                    .choice_index = r % 3, .position = 17 * r});
  }
  const std::vector<int32_t> expected = Expected(logits, kVocab, rows);
  EXPECT_GT(std::set<int32_t>(expected.begin(), expected.end()).size(), 25u);  // they do differ
  ExpectSameBitsInAnyOrder(expected, [&] { return RunSample(logits, kVocab, rows); });
}

TEST(SampleTest, LargeVocabulariesDrawTheHostsTokens) {
  constexpr int kVocab = 5003, kRows = 30;
  const std::vector<float> logits = RandomFloats(kRows * kVocab, 4, 1.0f);
  std::vector<SampleRow> rows;
  for (uint32_t r = 0; r < kRows; ++r) {
    rows.push_back({.temperature = r % 5 == 0 ? 0.02f : 1.3f, .seed = 1234567 + r, .position = r});
  }
  ExpectSameBitsInAnyOrder(Expected(logits, kVocab, rows), [&] { return RunSample(logits, kVocab, rows); });
}

TEST(SampleTest, ARowsTokenDoesNotDependOnTheOthers) {
  constexpr int kVocab = 1100;
  const std::vector<float> logits = RandomFloats(6 * kVocab, 5);
  std::vector<SampleRow> rows;
  for (uint32_t r = 0; r < 6; ++r) rows.push_back({.temperature = 1, .seed = r, .position = 3});
  const std::vector<int32_t> together = RunSample(logits, kVocab, rows);
  for (int r = 0; r < 6; ++r) {
    EXPECT_EQ(RunSample({logits.begin() + r * kVocab, logits.begin() + (r + 1) * kVocab}, kVocab, {rows[r]})[0],
              together[r]);
  }
}

TEST(SampleTest, LogitsThatAreNotFiniteGiveNoToken) {
  std::vector<float> logits = RandomFloats(3 * 300, 6);
  logits[299] = std::numeric_limits<float>::quiet_NaN();
  logits[300 + 7] = std::numeric_limits<float>::infinity();
  const std::vector<int32_t> ids = RunSample(logits, 300, {{.temperature = 1}, {.temperature = 0}, {.temperature = 1}});
  EXPECT_EQ(ids[0], -1);
  EXPECT_EQ(ids[1], -1);
  EXPECT_GE(ids[2], 0);
}

}  // namespace
}  // namespace baton::kernels::cuda
