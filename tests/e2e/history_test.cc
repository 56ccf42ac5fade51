// A conversation's second turn computes only its new tokens, wherever the first was decoded: decode offers the KV of what
// it generated back to the prefill side.
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

constexpr int kBlockSize = 16;

v1::GenerateRequest Turn(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(true);
  return request;
}

TEST(HistoryTest, TurnTwoPrefillsOnlyItsNewTokensWhereverTurnOneWasDecoded) {
  const ModelUnderTest model = ChooseModel();
  auto cluster = Cluster::Start({.model = model.path, .prefill = 1, .decode = 2, .flags = {"--kv-memory-mib=160"},
                                 .router_flags = {"--placement=round_robin"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  WorkerProcess* prefill = nullptr;
  for (auto& worker : (*cluster)->workers()) {
    if (worker->name.rfind("prefill", 0) == 0) prefill = worker.get();
  }
  ASSERT_NE(prefill, nullptr);
  const auto cached = [&] {
    auto status = (*cluster)->WorkerStatusOf(*prefill);
    return status.ok() ? status->load().ledger().cached() : 0;
  };
  // The tiny model's context is 512.
  const int prompt_tokens = model.tiny ? 300 : 1000;
  const int answer_tokens = 60;
  std::set<std::string> decoded_by;
  // Until both decode workers have had one: they take turns by request, and a conversation has two.
  for (int conversation = 0; conversation < 4 && decoded_by.size() < 2; ++conversation) {
    if (conversation > 0) {
      ASSERT_TRUE((*cluster)->Generate(Turn({1, 2, 3}, 2)).status.ok());
    }
    std::vector<int32_t> ids;
    for (int i = 0; i < prompt_tokens; ++i) ids.push_back((i * 31 + conversation * 7 + 11) % 250 + 1);
    const uint64_t before = cached();
    const Generation first = (*cluster)->Generate(Turn(ids, answer_tokens), absl::Seconds(280));
    ASSERT_TRUE(first.status.ok()) << first.status.error_message();
    decoded_by.insert(first.summary.decode_worker());
    ids.insert(ids.end(), first.choices[0].token_ids.begin(), first.choices[0].token_ids.end());
    // The last token was never computed, and only whole blocks are cached.
    const uint64_t history = (ids.size() - 1) / kBlockSize;
    for (int i = 0; i < 200 && cached() < before + history; ++i) absl::SleepFor(absl::Milliseconds(50));
    EXPECT_EQ(cached(), before + history) << "the answer's KV must come back";
    for (int i = 0; i < 20; ++i) ids.push_back((i * 17 + conversation) % 250 + 1);
    const Generation second = (*cluster)->Generate(Turn(ids, 4), absl::Seconds(280));
    ASSERT_TRUE(second.status.ok()) << second.status.error_message();
    EXPECT_EQ(second.summary.usage().cached_tokens(), history * kBlockSize)
        << ids.size() << " tokens, decoded by " << first.summary.decode_worker();
  }
  EXPECT_EQ(decoded_by.size(), 2u) << "both decode workers must have had a turn";
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(30));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
