// Workers are killed, frozen and drained while requests stream; each stream must equal the one of an undisturbed
// cluster, token for token, and nothing may be left behind.
#include <signal.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/random_requests.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

v1::GenerateRequest LongRequest(uint64_t seed, int vocab_size) {
  v1::GenerateRequest request = RandomRequest(seed, {.vocab_size = vocab_size, .max_prompt_tokens = 200, .max_n = 3});
  v1::SamplingParams* params = request.mutable_sampling();
  // Long enough to be caught in the middle; some end by a stop string or id all the same.
  params->set_max_tokens(100 + static_cast<int>(seed % 150));
  params->clear_stop_token_ids();
  params->set_ignore_eos(seed % 4 != 0);
  if (seed % 3 == 0) params->add_stop({static_cast<char>('a' + seed % 26), static_cast<char>('a' + seed % 7)});
  return request;
}

// Clients that send the requests over and over and compare.
class Clients {
 public:
  Clients(Cluster* cluster, const std::vector<v1::GenerateRequest>& requests, const std::vector<Generation>& want,
          int number)
      : cluster_(cluster), requests_(requests), want_(want) {
    for (int i = 0; i < number; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Clients() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  // Until clients have got that many more tokens.
  void WaitForTokens(int64_t more) const {
    const int64_t until = tokens_ + more;
    const absl::Time late = absl::Now() + absl::Seconds(20);  // a fault may have stopped all of it for a while
    while (tokens_ < until && absl::Now() < late) absl::SleepFor(absl::Milliseconds(1));
  }
  int completed() const { return completed_; }
  // Requests whose last attempt ran there.
  int ServedBy(const std::string& worker) {
    MutexLock lock(&mu_);
    return served_[worker];
  }
  absl::Duration worst_gap() const { return absl::Microseconds(worst_gap_us_.load()); }

 private:
  void Run(int number) {
    for (size_t turn = static_cast<size_t>(number); !stop_; ++turn) {
      const size_t i = turn * 7 % requests_.size();
      v1::GenerateRequest request = requests_[i];
      request.set_request_id(absl::StrCat("chaos-", number, "-", turn));
      absl::Time last = absl::InfinitePast();
      const Generation got = cluster_->Generate(request, absl::Seconds(60),
                                                [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
                                                  if (!event.has_token()) return;
                                                  ++tokens_;
                                                  const absl::Time now = absl::Now();
                                                  if (last != absl::InfinitePast()) NoteGap(now - last);
                                                  last = now;
                                                });
      const std::string difference = Difference(got, want_[i]);
      EXPECT_EQ(difference, "") << request.request_id() << ", request " << i;
      ++completed_;
      MutexLock lock(&mu_);
      ++served_[got.summary.prefill_worker()];
      ++served_[got.summary.decode_worker()];
    }
  }
  void NoteGap(absl::Duration gap) {
    const int64_t us = absl::ToInt64Microseconds(gap);
    int64_t worst = worst_gap_us_;
    while (us > worst && !worst_gap_us_.compare_exchange_weak(worst, us)) {
    }
  }

  Cluster* const cluster_;
  const std::vector<v1::GenerateRequest>& requests_;
  const std::vector<Generation>& want_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> tokens_{0}, worst_gap_us_{0};
  std::atomic<int> completed_{0};
  Mutex mu_;
  std::map<std::string, int> served_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

class WorkerFaultsTest : public testing::Test {
 protected:
  void StartCluster(const std::vector<std::string>& more_flags = {}) {
    seed_ = static_cast<uint64_t>(FromEnvironment("BATON_CHAOS_SEED", 1));
    printf("BATON_CHAOS_SEED=%d\n", static_cast<int>(seed_));
    const char* tmp = getenv("TEST_TMPDIR");
    model_ = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/tiny.gguf");
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model_).ok());
    std::vector<std::string> flags = {"--kv-memory-mib=16", "--heartbeat-ms=100", "--worker-timeout-ms=1000",
                                      "--kv-lease-ms=5000", "--drain-timeout-ms=20000"};
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    auto cluster = Cluster::Start({.model = model_, .prefill = 2, .decode = 3, .flags = flags});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint64_t i = 0; i < 24; ++i) requests_.push_back(LongRequest(seed_ * 1000 + i, 280));
    for (const v1::GenerateRequest& request : requests_) {
      want_.push_back(cluster_->Generate(request));
      ASSERT_TRUE(want_.back().status.ok()) << want_.back().status.error_message();
      ASSERT_EQ(want_.back().violation, "");
    }
  }

  void ExpectQuiet() {
    const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(40));  // a lease is 30 s
    EXPECT_TRUE(quiet.ok()) << quiet;
  }

  // All that Prometheus has under that name, over all labels.
  double RouterMetric(const std::string& name) { return cluster_->Metric(cluster_->router_http(), name); }

  uint64_t seed_ = 0;
  std::string model_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<Generation> want_;
};

TEST_F(WorkerFaultsTest, EveryStreamEqualsTheUndisturbedOne) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const int faults = FromEnvironment("BATON_CHAOS_FAULTS", 50);
  std::mt19937_64 random(seed_);
  std::map<std::string, int> injected;
  Clients clients(cluster_.get(), requests_, want_, 4);
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
  }
  clients.Stop();
  ExpectQuiet();
  printf("%d faults (kill %d, freeze %d, drain %d), %d requests compared, %.0f moves, worst gap between tokens %.0f ms\n",
         faults, injected["kill"], injected["freeze"], injected["drain"], clients.completed(),
         RouterMetric("baton_request_retries_total"), absl::ToDoubleMilliseconds(clients.worst_gap()));
  EXPECT_GT(clients.completed(), 20);
  EXPECT_GT(RouterMetric("baton_request_retries_total"), 5) << "the faults hit nothing";
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
  Clients clients(cluster_.get(), requests_, want_, 4);
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

TEST_F(WorkerFaultsTest, TheOnlyDecodeWorkersAbsenceIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  for (int i = 3; i < 5; ++i) {
    cluster_->workers()[static_cast<size_t>(i)]->process->Signal(SIGTERM);
    ASSERT_TRUE(cluster_->workers()[static_cast<size_t>(i)]->process->WaitExit(absl::Seconds(40)).ok());
  }
  cluster_->workers().resize(3);  // two prefill, one decode
  for (int round = 0; round < 3; ++round) {
    Clients clients(cluster_.get(), requests_, want_, 3);
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
