// Workers are killed, frozen and drained while requests stream; each stream must equal the one of an undisturbed
// cluster, token for token, and nothing may be left behind.
#include <signal.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

class WorkerFaultsTest : public testing::Test {
 protected:
  void StartCluster(const std::vector<std::string>& more_flags = {}, const std::string& mode = "disaggregated") {
    seed_ = static_cast<uint64_t>(FromEnvironment("BATON_CHAOS_SEED", 1));
    printf("BATON_CHAOS_SEED=%d\n", static_cast<int>(seed_));
    std::vector<std::string> flags = {"--kv-memory-mib=16", "--heartbeat-ms=100", "--worker-timeout-ms=1000",
                                      "--kv-lease-ms=5000", "--drain-timeout-ms=20000"};
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    auto cluster = Cluster::Start({.model = TinyModel(),
                                   .prefill = mode == "aggregated" ? 0 : 2,
                                   .decode = 3,
                                   .flags = flags,
                                   .mode = mode});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    load_ = MakeWorkload(cluster_.get(), seed_, 24);
    ASSERT_FALSE(HasFailure());
  }

  // Kills, freezes and drains while tokens stream.
  void Disturb(int faults);

  void ExpectQuiet() {
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(40));  // a lease is 30 s
    EXPECT_TRUE(quiet.ok()) << quiet;
  }

  // All that Prometheus has under that name, over all labels.
  double RouterMetric(const std::string& name) { return cluster_->Metric(cluster_->router_http(), name); }

  uint64_t seed_ = 0;
  std::unique_ptr<Cluster> cluster_;
  Workload load_;
};

void WorkerFaultsTest::Disturb(int faults) {
  std::mt19937_64 random(seed_);
  std::map<std::string, int> injected;
  std::vector<absl::Duration> stalls;
  Clients clients(cluster_.get(), &load_, 4);
  for (int fault = 0; fault < faults && !HasFailure(); ++fault) {
    clients.WaitForTokens(100 + static_cast<int64_t>(random() % 600));
    WorkerProcess& victim = *cluster_->workers()[random() % cluster_->workers().size()];
    const uint64_t kind = random() % 10;
    if (kind < 5) {
      ++injected["kill"];
      victim.process->Signal(SIGKILL);
      ASSERT_TRUE(cluster_->Restart(victim).ok());
    } else if (kind < 8) {
      // Short freezes pass unnoticed; long ones make a zombie that comes back.
      ++injected["freeze"];
      victim.process->Signal(SIGSTOP);
      absl::SleepFor(absl::Milliseconds(100 + static_cast<int64_t>(random() % 1600)));
      victim.process->Signal(SIGCONT);
    } else {
      ++injected["drain"];
      victim.process->Signal(SIGTERM);
      const auto code = victim.process->WaitExit(absl::Seconds(40));
      ASSERT_TRUE(code.ok()) << code.status();
      EXPECT_EQ(*code, 0) << victim.process->stderr_text();
      ASSERT_TRUE(cluster_->Restart(victim).ok());
    }
    const absl::Status all = cluster_->WaitReady(absl::Seconds(30));
    ASSERT_TRUE(all.ok()) << all;
    stalls.push_back(clients.TakeWorstStall());
  }
  clients.Stop();
  ExpectQuiet();
  printf("%d faults (kill %d, freeze %d, drain %d), %d requests compared, %.0f moves; longest stall of each fault: %s\n",
         faults, injected["kill"], injected["freeze"], injected["drain"], clients.completed(),
         RouterMetric("baton_request_retries_total"), Percentiles(stalls).c_str());
  EXPECT_GT(clients.completed(), 20);
  EXPECT_GT(RouterMetric("baton_request_retries_total"), faults / 10) << "the faults hit nothing";
}

TEST_F(WorkerFaultsTest, EveryStreamEqualsTheUndisturbedOne) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  Disturb(FromEnvironment("BATON_CHAOS_FAULTS", 50));
}

// Prompts are computed by either pool, and an attempt may begin in one way and go on in the other.
TEST_F(WorkerFaultsTest, EveryStreamEqualsTheUndisturbedOneInAutoMode) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({}, "auto"));
  Disturb(FromEnvironment("BATON_CHAOS_FAULTS", 50) / 2);
}

TEST_F(WorkerFaultsTest, EveryStreamEqualsTheUndisturbedOneInAggregatedMode) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({}, "aggregated"));
  Disturb(FromEnvironment("BATON_CHAOS_FAULTS", 50) / 2);
}

TEST_F(WorkerFaultsTest, ADeadDecodeWorkerCostsATransferNotAPrefill) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  v1::GenerateRequest request;
  request.set_request_id("undisturbed");
  for (int i = 0; i < 400; ++i) request.mutable_token_ids()->add_ids((i * 37 + 11) % 280);
  request.mutable_sampling()->set_max_tokens(100);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(3);
  const Generation want = cluster_->Generate(request);
  ASSERT_TRUE(want.status.ok()) << want.status.error_message();
  request.mutable_token_ids()->set_ids(0, 5);  // another prompt, which no cache has; its answer is compared below
  request.set_request_id("killed");
  int tokens = 0;
  const Generation got = cluster_->Generate(request, absl::Seconds(60),
                                            [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
                                              tokens += event.has_token();
                                              if (tokens != 40 || !event.has_token()) return;
                                              // Whichever has it: all but one, so that it has somewhere to go.
                                              for (int i = 2; i < 4; ++i) {
                                                cluster_->workers()[static_cast<size_t>(i)]->process->Signal(SIGKILL);
                                              }
                                            });
  for (int i = 2; i < 4; ++i) ASSERT_TRUE(cluster_->Restart(*cluster_->workers()[static_cast<size_t>(i)]).ok());
  ASSERT_TRUE(cluster_->WaitReady(absl::Seconds(30)).ok());
  request.set_request_id("again");
  EXPECT_EQ(Difference(got, cluster_->Generate(request)), "");
  if (RouterMetric("baton_request_retries_total") > 0) {
    EXPECT_GE(got.summary.usage().cached_tokens(), 384u) << "24 of its 25 blocks were still with a prefill worker";
  }
  ExpectQuiet();
}

TEST_F(WorkerFaultsTest, WorkersComeAndGoWithoutAFailedRequest) {
  // Prompts come back, and would all stay with the workers that have them cached.
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--prefix-cache=false"}));
  Clients clients(cluster_.get(), &load_, 4);
  for (int cycle = 0; cycle < 4; ++cycle) {
    const std::string role = cycle % 2 == 0 ? "decode" : "prefill";
    const auto added = cluster_->AddWorker(role);
    ASSERT_TRUE(added.ok()) << added.status();
    const std::string name = (*added)->name;
    const absl::Time ready = absl::Now();
    while (clients.ServedBy(name) == 0 && absl::Now() - ready < absl::Seconds(30)) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_GT(clients.ServedBy(name), 0) << name << " got no traffic";
    printf("%s: a request had ended on it %.0f ms after it said ready\n", name.c_str(),
           absl::ToDoubleMilliseconds(absl::Now() - ready));
    // The oldest of that role goes.
    auto& workers = cluster_->workers();
    const auto oldest = std::find_if(workers.begin(), workers.end(), [&](const auto& w) { return w->role == role; });
    (*oldest)->process->Signal(SIGTERM);
    const auto code = (*oldest)->process->WaitExit(absl::Seconds(40));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << (*oldest)->process->stderr_text();
    workers.erase(oldest);
  }
  clients.Stop();
  EXPECT_GT(clients.completed(), 10);
  ExpectQuiet();
}

// It took their silence while it did not run for their death.
TEST_F(WorkerFaultsTest, AFrozenRouterLosesNoWorker) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  Clients clients(cluster_.get(), &load_, 3);
  for (int round = 0; round < 3; ++round) {
    clients.WaitForTokens(100);
    cluster_->router().Signal(SIGSTOP);
    absl::SleepFor(absl::Milliseconds(2500));  // the timeout is 1 s
    cluster_->router().Signal(SIGCONT);
    clients.WaitForTokens(100);
  }
  clients.Stop();
  EXPECT_EQ(cluster_->router().stderr_text().find("worker gone"), std::string::npos) << cluster_->router().stderr_text();
  ExpectQuiet();
}

TEST_F(WorkerFaultsTest, TheOnlyDecodeWorkersAbsenceIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  for (int i = 3; i < 5; ++i) {
    cluster_->workers()[static_cast<size_t>(i)]->process->Signal(SIGTERM);
    ASSERT_TRUE(cluster_->workers()[static_cast<size_t>(i)]->process->WaitExit(absl::Seconds(40)).ok());
  }
  cluster_->workers().resize(3);  // two prefill, one decode
  for (int round = 0; round < 3; ++round) {
    Clients clients(cluster_.get(), &load_, 3);
    clients.WaitForTokens(200);
    cluster_->workers()[2]->process->Signal(SIGKILL);
    absl::SleepFor(absl::Milliseconds(700));  // longer than three attempts at once would take
    ASSERT_TRUE(cluster_->Restart(*cluster_->workers()[2]).ok());
    clients.WaitForTokens(200);
    clients.Stop();
  }
  ExpectQuiet();
}

}  // namespace
}  // namespace baton::e2e
