// The strongest test there is of the hand-over: random requests through router, two prefill and two decode processes, eight
// at a time, give the same token ids (and the same bits of every log-probability) as each request alone in one process.
// BATON_E2E_REQUESTS sets the count (default 60; the long count is 200).
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/one_process.h"
#include "tests/e2e/random_requests.h"

namespace baton::e2e {
namespace {

constexpr uint64_t kFirstSeed = 9000;

// `requests_by_mode`, if not null, becomes what the router counted: remote, local.
void ExpectExact(const std::string& mode, int prefill, int decode, int default_requests,
                 std::pair<int, int>* requests_by_mode) {
  const char* count = getenv("BATON_E2E_REQUESTS");
  const int num_requests = count != nullptr ? atoi(count) : default_requests;
  const ModelUnderTest model = ChooseModel();
  const RequestShape shape{.vocab_size = model.vocab_size, .max_prompt_tokens = 300, .max_output_tokens = 24, .max_n = 4};
  std::vector<Generation> got(num_requests);
  {
    auto cluster = Cluster::Start({.model = model.path, .prefill = prefill, .decode = decode,
                                   .flags = {"--kv-memory-mib=64"}, .mode = mode});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    std::atomic<int> next = 0;
    auto client = [&] {
      for (int i; (i = next++) < num_requests;) {
        got[i] = (*cluster)->Generate(RandomRequest(kFirstSeed + i, shape), absl::Seconds(300));
      }
    };
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) clients.emplace_back(client);
    for (std::thread& thread : clients) thread.join();
    const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
    const auto counted = [&](const char* how) {
      return static_cast<int>((*cluster)->Metric(
          (*cluster)->router_http(), absl::StrCat("baton_requests_by_mode_total{mode=\"", how, "\"}")));
    };
    *requests_by_mode = {counted("remote"), counted("local")};
  }
  OneProcess oracle(model.path);
  for (int i = 0; i < num_requests; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kFirstSeed + i));
    ASSERT_TRUE(got[i].status.ok()) << got[i].status.error_message();
    EXPECT_EQ(got[i].violation, "");
    const v1::GenerateRequest request = RandomRequest(kFirstSeed + i, shape);
    auto want = oracle.Run(request);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_EQ(got[i].choices.size(), want->size());
    for (size_t c = 0; c < want->size(); ++c) {
      EXPECT_EQ(got[i].choices[c].token_ids, (*want)[c].token_ids) << "choice " << c;
      EXPECT_EQ(got[i].choices[c].finished.reason(), (*want)[c].reason) << "choice " << c;
      if (request.sampling().has_logprobs()) {
        ASSERT_EQ(got[i].choices[c].logprobs.size(), (*want)[c].logprobs.size());
        EXPECT_EQ(memcmp(got[i].choices[c].logprobs.data(), (*want)[c].logprobs.data(),
                         (*want)[c].logprobs.size() * sizeof(float)), 0) << "choice " << c;
      }
    }
    // A hand-over may move nothing: the decode worker had it all. Without one nothing moves.
    const bool same = got[i].summary.prefill_worker() == got[i].summary.decode_worker();
    EXPECT_TRUE(!same || got[i].summary.kv().bytes() == 0);
  }
  EXPECT_EQ(requests_by_mode->first + requests_by_mode->second, num_requests);
}

TEST(ExactnessTest, ClusterEqualsOneProcessTokenForToken) {
  std::pair<int, int> by_mode;
  ExpectExact("disaggregated", 2, 2, 60, &by_mode);
  EXPECT_EQ(by_mode.second, 0);
}

TEST(ExactnessTest, WorkersOfBothPhasesEqualOneProcess) {
  std::pair<int, int> by_mode;
  ExpectExact("aggregated", 0, 2, 30, &by_mode);
  EXPECT_EQ(by_mode.first, 0);
}

TEST(ExactnessTest, ARouterThatChoosesEqualsOneProcess) {
  std::pair<int, int> by_mode;
  ExpectExact("auto", 1, 1, 30, &by_mode);
  EXPECT_GT(by_mode.second, 0) << "an idle decode worker computes a prompt of a few tokens itself";
}

}  // namespace
}  // namespace baton::e2e
