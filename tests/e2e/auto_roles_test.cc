// A router that may change roles (auto_roles) gives an overloaded prefill pool a decode worker, while requests run.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

int ReadyWorkers(Cluster* cluster, const std::string& role) {
  const auto status = cluster->Status();
  if (!status.ok()) return -1;
  int ready = 0;
  for (const auto& w : status->workers()) ready += w.info().role() == role && w.state() == "ready";
  return ready;
}

TEST(AutoRolesTest, PromptsThatPileUpTurnADecodeWorkerIntoAPrefillWorker) {
  auto started = Cluster::Start({.model = SmolLm2(),
                                 .prefill = 1,
                                 .decode = 2,
                                 .flags = {"--kv-memory-mib=2048", "--prefix-cache=false", "--role-dwell-ms=500"},
                                 .router_flags = {"--auto-roles=true"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster* const cluster = started->get();
  std::string prompt;
  for (int i = 0; i < 150; ++i) absl::StrAppend(&prompt, i, " ");
  std::atomic<bool> stop{false};
  std::atomic<int> done{0}, failed{0};
  std::vector<std::thread> clients;
  const auto client = [&] {
    while (!stop) {
      v1::GenerateRequest request;
      request.set_prompt(prompt);
      request.mutable_sampling()->set_max_tokens(2);
      request.mutable_sampling()->set_temperature(0);
      const Generation g = cluster->Generate(request, absl::Seconds(240));
      ++done;
      if (g.status.ok() && g.violation.empty()) continue;
      if (++failed == 1) ADD_FAILURE() << g.status.error_message() << g.violation;
      return;
    }
  };
  const absl::Time until = absl::Now() + absl::Seconds(240);
  const auto changes = [&] { return cluster->Metric(cluster->router_http(), "baton_role_changes_total"); };
  // One client after the other, until prompts wait for as long as it takes on this machine, however fast it is. (All at once
  // would be minutes of work for a slow one, which the worker that changes would have to end first.)
  while (changes() < 1 && absl::Now() < until) {
    if (clients.size() < 60) clients.emplace_back(client);
    absl::SleepFor(absl::Milliseconds(250));
  }
  while (ReadyWorkers(cluster, "prefill") < 2 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(ReadyWorkers(cluster, "prefill"), 2);
  // The last decode worker stays, however long prompts wait.
  const int before = done;
  while (done < before + 32 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(ReadyWorkers(cluster, "decode"), 1);
  stop = true;
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(changes(), 1);
  ASSERT_TRUE(cluster->FollowRoles().ok());
  const absl::Status quiet = cluster->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
