// Router, prefill and decode processes that hand KV over by NCCL (the one of tests, between processes of one host): the
// tokens of one process, and nothing hangs, leaks or stays broken when a peer is killed.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/one_process.h"
#include "tests/e2e/random_requests.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

constexpr RequestShape kShape{.vocab_size = 280, .max_prompt_tokens = 200, .max_output_tokens = 16, .max_n = 2};

class NcclClusterTest : public testing::Test {
 protected:
  NcclClusterTest() : model_(testing::TempDir() + "/tiny.gguf") {
    EXPECT_TRUE(fakes::WriteTinyGguf({}, model_).ok());
  }
  void Start(int prefill) {
    auto cluster = Cluster::Start({.model = model_,
                                   .prefill = prefill,
                                   .flags = {"--kv-memory-mib=16", "--kv-transport=nccl"},
                                   .worker_suffix = "_emulated"});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  // `count` random requests from `seed`, four at a time; `at` is called before each with its number.
  std::vector<Generation> Run(uint64_t seed, int count, const std::function<void(int)>& at = {}) {
    std::vector<Generation> got(count);
    std::atomic<int> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&] {
        for (int i; (i = next++) < count;) {
          if (at) at(i);
          got[i] = cluster_->Generate(RandomRequest(seed + i, kShape), absl::Seconds(120));
        }
      });
    }
    for (std::thread& client : clients) client.join();
    return got;
  }
  void ExpectExact(uint64_t seed, const std::vector<Generation>& got) {
    OneProcess oracle(model_);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("seed ", seed + i));
      ASSERT_TRUE(got[i].status.ok()) << got[i].status.error_message();
      EXPECT_EQ(got[i].violation, "");
      auto want = oracle.Run(RandomRequest(seed + i, kShape));
      ASSERT_TRUE(want.ok()) << want.status();
      for (size_t c = 0; c < want->size(); ++c) EXPECT_EQ(got[i].choices[c].token_ids, (*want)[c].token_ids);
    }
  }
  WorkerProcess& Worker(const std::string& role) {
    for (auto& worker : cluster_->workers()) {
      if (worker->role == role) return *worker;
    }
    abort();
  }
  double Received(const std::string& by) {
    return cluster_->Metric(Worker("decode").http,
                            absl::StrCat("baton_kv_received_bytes_total{transport=\"", by, "\"}"));
  }
  const std::string model_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(NcclClusterTest, TokensAreThoseOfOneProcessAndNcclCarriedThem) {
  Start(1);
  const std::vector<Generation> got = Run(100, 24);
  EXPECT_GT(Received("nccl"), 0);
  EXPECT_EQ(Received("grpc"), 0) << Worker("decode").process->stderr_text();
  for (const char* code : {"UNAVAILABLE", "DATA_LOSS", "ABORTED", "DEADLINE_EXCEEDED"}) {
    const std::string failures = absl::StrCat("baton_kv_fetch_failures_total{code=\"", code, "\",transport=\"nccl\"}");
    EXPECT_EQ(cluster_->Metric(Worker("decode").http, failures), 0) << code;
  }
  const absl::Status quiet = cluster_->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
  cluster_.reset();
  ExpectExact(100, got);
}

TEST_F(NcclClusterTest, AKilledPrefillWorkerHangsNothingAndItsNextLifeHandsOverByNccl) {
  Start(2);
  WorkerProcess& victim = Worker("prefill");
  const std::vector<Generation> got = Run(200, 24, [&](int i) {
    if (i == 8) victim.process->Signal(SIGKILL);
  });
  ASSERT_TRUE(cluster_->Restart(victim).ok());
  ASSERT_TRUE(cluster_->WaitReady(absl::Seconds(60)).ok());
  // Only the new life: the other one goes.
  for (auto& worker : cluster_->workers()) {
    if (worker->role == "prefill" && worker.get() != &victim) worker->process->Signal(SIGKILL);
  }
  const double before = Received("nccl");
  const std::vector<Generation> after = Run(300, 8);
  EXPECT_GT(Received("nccl"), before) << "a new communicator with the new process";
  cluster_.reset();
  ExpectExact(200, got);
  ExpectExact(300, after);
}

}  // namespace
}  // namespace baton::e2e
