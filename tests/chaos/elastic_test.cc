// Pools grow, shrink and are restarted worker by worker while requests stream: none fails, each equals the one of an
// undisturbed cluster, and nothing is left behind.
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

class ElasticTest : public testing::Test {
 protected:
  void StartCluster(const std::string& mode, const std::vector<std::string>& more_flags = {}) {
    std::vector<std::string> flags = {"--kv-memory-mib=16", "--prefix-cache=false"};
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    auto cluster = Cluster::Start({.model = TinyModel(),
                                   .prefill = 2,
                                   .decode = 2,
                                   // Prompts come back, and would all stay with the workers that have them cached.
                                   .flags = flags,
                                   .mode = mode});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    load_ = MakeWorkload(cluster_.get(), 1, 24);
    ASSERT_FALSE(HasFailure());
  }

  // Takes it out as operators do: the RPC behind `baton drain`, `baton scale` and the console, or SIGTERM.
  void Drain(WorkerProcess& worker, bool by_rpc) {
    if (by_rpc) {
      grpc::ClientContext context;
      v1::DrainResponse response;
      const grpc::Status asked = worker.stub->Drain(&context, {}, &response);
      ASSERT_TRUE(asked.ok()) << asked.error_message();
    } else {
      worker.process->Signal(SIGTERM);
    }
    const auto code = worker.process->WaitExit(absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << worker.name << ": " << code.status();
    EXPECT_EQ(*code, 0) << worker.name << ": " << worker.process->stderr_text();
  }

  void ScaleUpAndDown(Clients& clients, int cycle) {
    const std::vector<std::string> roles = {"prefill", "decode"};
    std::vector<std::string> added;
    for (const std::string& role : roles) {
      const auto worker = cluster_->AddWorker(role);
      ASSERT_TRUE(worker.ok()) << worker.status();
      added.push_back((*worker)->name);
    }
    const absl::Status ready = cluster_->WaitReady(absl::Seconds(60));
    ASSERT_TRUE(ready.ok()) << ready;
    const absl::Time until = absl::Now() + absl::Seconds(30);
    const auto idle = [&](const std::string& name) { return clients.ServedBy(name) == 0; };
    while (std::any_of(added.begin(), added.end(), idle) && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
    for (const std::string& name : added) EXPECT_FALSE(idle(name)) << name << " got no traffic";
    // The oldest of each role go, so that after some cycles only workers that joined under load are left.
    auto& workers = cluster_->workers();
    for (const std::string& role : roles) {
      const auto oldest = std::find_if(workers.begin(), workers.end(), [&](const auto& w) { return w->role == role; });
      ASSERT_NO_FATAL_FAILURE(Drain(**oldest, cycle % 2 == 0));
      workers.erase(oldest);
    }
  }

  void ExpectNoneFailed(Clients& clients, const std::string& what, const std::vector<absl::Duration>& stalls) {
    clients.Stop();
    ExpectNothingHeld(cluster_.get());
    printf("%s: %d streams equal, %.0f moves; longest stall of each: %s\n", what.c_str(), clients.completed(),
           cluster_->Metric(cluster_->router_http(), "baton_request_retries_total"), Percentiles(stalls).c_str());
    EXPECT_GT(clients.completed(), static_cast<int>(stalls.size()));
    const auto status = cluster_->Status();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->requests_failed(), 0u);
  }

  std::unique_ptr<Cluster> cluster_;
  Workload load_;
};

TEST_F(ElasticTest, PoolsGrowAndShrinkUnderLoadWithoutAFailedRequest) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated"));
  const int cycles = FromEnvironment("BATON_SCALE_CYCLES", 5);
  Clients clients(cluster_.get(), &load_, 4);
  std::vector<absl::Duration> stalls;
  for (int cycle = 0; cycle < cycles && !HasFailure(); ++cycle) {
    ASSERT_NO_FATAL_FAILURE(ScaleUpAndDown(clients, cycle));
    stalls.push_back(clients.TakeWorstStall());
  }
  ExpectNoneFailed(clients, "scale cycles", stalls);
}

TEST_F(ElasticTest, EveryWorkerIsRestartedUnderLoadWithoutAFailedRequest) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("auto"));
  const int rolls = FromEnvironment("BATON_ROLLING_RESTARTS", 5);
  Clients clients(cluster_.get(), &load_, 4);
  std::vector<absl::Duration> stalls;
  for (int roll = 0; roll < rolls && !HasFailure(); ++roll) {
    for (auto& worker : cluster_->workers()) {
      clients.WaitForTokens(50);
      ASSERT_NO_FATAL_FAILURE(Drain(*worker, roll % 2 == 0));
      ASSERT_TRUE(cluster_->Restart(*worker).ok());
      const absl::Status ready = cluster_->WaitReady(absl::Seconds(60));
      ASSERT_TRUE(ready.ok()) << ready;
    }
    stalls.push_back(clients.TakeWorstStall());
  }
  ExpectNoneFailed(clients, "rolling restarts", stalls);
}

// A worker of the pool that has more becomes one of the other, in turn; its process and its weights stay.
TEST_F(ElasticTest, WorkersChangeTheirRoleUnderLoadWithoutAFailedRequest) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated", {"--role-dwell-ms=0"}));
  const int changes = FromEnvironment("BATON_ROLE_CHANGES", 8);
  Clients clients(cluster_.get(), &load_, 4);
  std::vector<absl::Duration> stalls;
  for (int i = 0; i < changes && !HasFailure(); ++i) {
    clients.WaitForTokens(50);
    const std::string from = i % 2 == 0 ? "decode" : "prefill", to = i % 2 == 0 ? "prefill" : "decode";
    auto& workers = cluster_->workers();
    // The one that has been longest in its role.
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const auto& w) { return w->role == from; });
    ASSERT_NE(worker, workers.end());
    const pid_t pid = (*worker)->process->pid();
    const absl::Status changed = cluster_->ChangeRole(**worker, to, absl::Seconds(60));
    ASSERT_TRUE(changed.ok()) << changed;
    EXPECT_EQ((*worker)->process->pid(), pid);
    const int before = clients.ServedBy((*worker)->name);
    for (const absl::Time until = absl::Now() + absl::Seconds(30);
         clients.ServedBy((*worker)->name) == before && absl::Now() < until;) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    EXPECT_GT(clients.ServedBy((*worker)->name), before) << (*worker)->name << " got no traffic as " << to;
    std::rotate(worker, worker + 1, workers.end());
    stalls.push_back(clients.TakeWorstStall());
  }
  ExpectNoneFailed(clients, "role changes", stalls);
  for (const auto& worker : cluster_->workers()) {
    const std::string said = worker->process->stdout_text();
    const size_t ready = said.find("\"ready\"");
    ASSERT_NE(ready, std::string::npos);
    EXPECT_EQ(said.find("\"loading\"", ready), std::string::npos) << worker->name << " loaded its model again: " << said;
  }
}

TEST_F(ElasticTest, ARoleIsKeptForAWhile) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated", {"--role-dwell-ms=3600000"}));
  WorkerProcess& worker = *cluster_->workers().back();
  const std::string other = worker.role == "decode" ? "prefill" : "decode";
  const absl::Status early = cluster_->ChangeRole(worker, other, absl::Seconds(10));
  EXPECT_EQ(early.code(), absl::StatusCode::kResourceExhausted) << early;
  EXPECT_THAT(std::string(early.message()), testing::HasSubstr("role_dwell_ms"));
  const absl::Status unknown = cluster_->ChangeRole(worker, "router", absl::Seconds(10));
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument) << unknown;
  EXPECT_TRUE(cluster_->ChangeRole(worker, worker.role, absl::Seconds(10)).ok()) << "it has that role";
  EXPECT_EQ(cluster_->Generate(load_.requests[0]).choices[0].token_ids, load_.want[0].choices[0].token_ids);
}

// The second signal of a change and a stop: the process ends, in order.
TEST_F(ElasticTest, AWorkerThatIsStoppedWhileItChangesItsRoleEndsWell) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated", {"--role-dwell-ms=0"}));
  for (int i = 0; i < 3; ++i) {
    WorkerProcess& worker = *cluster_->workers()[static_cast<size_t>(i)];
    grpc::ClientContext context;
    v1::ChangeRoleRequest request;
    request.set_role(worker.role == "decode" ? "prefill" : "decode");
    v1::ChangeRoleResponse response;
    const grpc::Status asked = worker.stub->ChangeRole(&context, request, &response);
    ASSERT_TRUE(asked.ok()) << asked.error_message();
    absl::SleepFor(absl::Milliseconds(i * 20));
    worker.process->Signal(SIGTERM);
    const auto code = worker.process->WaitExit(absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << worker.name << ": " << code.status();
    EXPECT_EQ(*code, 0) << worker.process->stderr_text();
    // Without it, `baton up` takes the end for a death and starts the worker again.
    EXPECT_THAT(worker.process->stdout_text(), testing::HasSubstr("\"draining\""));
  }
}

}  // namespace
}  // namespace baton::e2e
