// Many requests, a third of them cancelled at random moments: afterwards no worker holds anything and every ledger adds up.
// BATON_E2E_REQUESTS sets the count (default 200; the long count is 1000).
#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/random_requests.h"

namespace baton::e2e {
namespace {

void ExpectBalanced(const std::string& mode, int prefill, int decode, int default_requests) {
  const char* count = getenv("BATON_E2E_REQUESTS");
  const int num_requests = count != nullptr ? atoi(count) : default_requests;
  // A pool so small that requests wait for room, are preempted and evict cached blocks.
  const ModelUnderTest model = ChooseModel();
  auto cluster = Cluster::Start({.model = model.path,
                                 .prefill = prefill,
                                 .decode = decode,
                                 .flags = {model.tiny ? "--kv-memory-mib=1" : "--kv-memory-mib=24"},
                                 .mode = mode});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::atomic<int> next = 0, cancelled = 0, completed = 0, other = 0;
  auto client = [&] {
    for (int i; (i = next++) < num_requests;) {
      v1::GenerateRequest request = RandomRequest(
          5000 + i, {.vocab_size = model.vocab_size, .max_prompt_tokens = 40, .max_output_tokens = 12, .max_n = 2});
      std::mt19937_64 rng(i);
      const bool cancel = rng() % 3 == 0;
      // Before anything came back, at some event, or by a deadline in the middle of whatever phase it hits.
      const int at_event = static_cast<int>(rng() % 6);
      const bool by_deadline = cancel && rng() % 2 == 0;
      int events = 0;
      Generation g = (*cluster)->Generate(
          request, by_deadline ? absl::Milliseconds(1 + rng() % 150) : absl::Seconds(100),
          [&](grpc::ClientContext* context, const v1::GenerateResponse&) {
            if (cancel && !by_deadline && events++ == at_event) context->TryCancel();
          });
      EXPECT_EQ(g.violation, "") << "seed " << 5000 + i;
      if (g.status.ok()) {
        ++completed;
      } else if (cancel && (g.status.error_code() == grpc::StatusCode::CANCELLED ||
                            g.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
        ++cancelled;
      } else {
        ++other;
        ADD_FAILURE() << "seed " << 5000 + i << ": " << g.status.error_code() << " " << g.status.error_message();
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(client);
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(other, 0);
  EXPECT_GT(cancelled, num_requests / 10);
  EXPECT_GT(completed, num_requests / 2);
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(30));
  EXPECT_TRUE(quiet.ok()) << quiet;
  // The router may hear of a client that went away after the workers are done.
  const absl::Time until = absl::Now() + absl::Seconds(30);
  auto status = (*cluster)->Status();
  while (status.ok() && status->requests_in_flight() > 0 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(10));
    status = (*cluster)->Status();
  }
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->requests_in_flight(), 0u);
}

TEST(AccountingTest, LedgersBalanceAfterRandomCancels) { ExpectBalanced("disaggregated", 2, 2, 200); }
TEST(AccountingTest, OfWorkersThatRunBothPhases) { ExpectBalanced("aggregated", 0, 2, 100); }
TEST(AccountingTest, WhereTheRouterChooses) { ExpectBalanced("auto", 1, 1, 100); }

}  // namespace
}  // namespace baton::e2e
