// The promise that everything else stands on: a position's logits are the same bits however the work was cut.
#ifndef BATON_TESTS_MODEL_EXACTNESS_H_
#define BATON_TESTS_MODEL_EXACTNESS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/model/model_runner_util.h"

namespace baton::model {

using Logits = std::vector<std::vector<float>>;  // [position][vocab]

inline void ExpectSameBits(const Logits& want, const Logits& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  for (size_t p = 0; p < want.size(); ++p) {
    ASSERT_EQ(want[p].size(), got[p].size()) << what;
    for (size_t i = 0; i < want[p].size(); ++i) {
      ASSERT_EQ(std::memcmp(&want[p][i], &got[p][i], sizeof(float)), 0)
          << what << ": position " << p << ", id " << i << ": " << want[p][i] << " and " << got[p][i];
    }
  }
}

inline std::vector<int32_t> RandomIds(int n, int vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    ids.push_back(static_cast<int32_t>((seed >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// All positions in one pass, alone.
inline Logits WholePrompt(Transformer* model, const std::vector<int32_t>& ids, kernels::DType kv_dtype) {
  TestKvPool pool(model->KvLayoutFor(kv_dtype, 16), static_cast<int>(ids.size()) / 16 + 1, model->device());
  TestSequence sequence{.token_ids = ids};
  Step(model, &pool, {{&sequence, static_cast<int>(ids.size())}});
  return sequence.logits;
}

// Chunks of other sizes, one position at a time (decode), other block sizes, and a batch shared with strangers that
// come and go: all must give the bits of WholePrompt.
inline void ExpectExact(Transformer* model, kernels::DType kv_dtype, int num_tokens, const std::vector<int>& chunks) {
  const int vocab = model->vocab_size();
  const std::vector<int32_t> ids = RandomIds(num_tokens, vocab, 1);
  const Logits want = WholePrompt(model, ids, kv_dtype);
  for (const auto& row : want) {
    for (float logit : row) ASSERT_TRUE(std::isfinite(logit));
  }
  for (int chunk : chunks) {
    TestKvPool pool(model->KvLayoutFor(kv_dtype, chunk % 2 == 0 ? 16 : 32), num_tokens / 16 + 2, model->device());
    TestSequence sequence{.token_ids = ids};
    while (sequence.num_computed < num_tokens) {
      Step(model, &pool, {{&sequence, std::min(chunk, num_tokens - sequence.num_computed)}});
    }
    ExpectSameBits(want, sequence.logits, absl::StrCat("chunks of ", chunk));
  }
  TestKvPool pool(model->KvLayoutFor(kv_dtype, 16), 8 * (num_tokens / 16 + 2), model->device());
  TestSequence sequence{.token_ids = ids};
  TestSequence before{.token_ids = RandomIds(num_tokens, vocab, 2)};
  TestSequence after{.token_ids = RandomIds(num_tokens, vocab, 3)};
  TestSequence twin{.token_ids = ids};
  for (int step = 0; sequence.num_computed < num_tokens; ++step) {
    const auto rows = [&](const TestSequence& s, int n) { return std::min(n, num_tokens - s.num_computed); };
    std::vector<std::pair<TestSequence*, int>> work;
    if (step % 3 != 0 && rows(before, 1) > 0) work.emplace_back(&before, rows(before, 1 + step % 5));
    work.emplace_back(&sequence, rows(sequence, step % 4 == 3 ? 9 : 1));
    if (step % 2 == 0 && rows(after, 1) > 0) work.emplace_back(&after, rows(after, 7));
    if (step % 5 != 0 && rows(twin, 1) > 0) work.emplace_back(&twin, rows(twin, 2));
    Step(model, &pool, work);
  }
  ExpectSameBits(want, sequence.logits, "a shared batch");
  Logits twins(want.begin(), want.begin() + twin.num_computed);
  ExpectSameBits(twins, twin.logits, "its twin in the same batch");
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_EXACTNESS_H_
