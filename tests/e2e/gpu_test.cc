// Workers whose forward pass stays on a GPU (isa: cuda), here the emulated one, whose memory host code cannot touch: they
// serve requests, hand their KV over, and give the tokens of the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/one_process.h"
#include "tests/e2e/random_requests.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

// Prompts of more than one block of 16 and than one chunk of 32.
constexpr RequestShape kShape{.vocab_size = 280, .max_prompt_tokens = 60, .max_output_tokens = 8, .max_n = 2};
constexpr int kRequests = 8;

class GpuClusterTest : public testing::Test {
 protected:
  GpuClusterTest() : model_(testing::TempDir() + "/tiny.gguf") { EXPECT_TRUE(fakes::WriteTinyGguf({}, model_).ok()); }
  absl::StatusOr<std::unique_ptr<Cluster>> Start(std::vector<std::string> prefill, std::vector<std::string> decode,
                                                 const std::string& transport, const std::string& numerics = "f32",
                                                 int num_prefill = 1, const std::string& model = "") {
    return Cluster::Start({.model = model.empty() ? model_ : model,
                           .prefill = num_prefill,
                           .flags = {"--kv-memory-mib=4", "--numerics=" + numerics, "--kv-dtype=f16", "--max-batch-tokens=32",
                                     "--kv-transport=" + transport},
                           .prefill_flags = std::move(prefill),
                           .decode_flags = std::move(decode),
                           .worker_suffix = "_emulated"});
  }
  // That the answer to RandomRequest(seed, kShape) has the tokens of one process.
  static void ExpectTokens(const Generation& got, OneProcess* oracle, uint64_t seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_EQ(got.violation, "");
    auto want = oracle->Run(RandomRequest(seed, kShape));
    ASSERT_TRUE(want.ok()) << want.status();
    for (size_t c = 0; c < want->size(); ++c) EXPECT_EQ(got.choices[c].token_ids, (*want)[c].token_ids);
  }
  static Generation Generate(Cluster* cluster, uint64_t seed) {
    return cluster->Generate(RandomRequest(seed, kShape), absl::Seconds(120));
  }
  static std::string ClassOf(Cluster* cluster, WorkerProcess& worker) {
    const auto status = cluster->WorkerStatusOf(worker);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? status->fingerprint().numerics_class() : "";
  }
  // That a worker with these flags ends with an error that says so.
  void ExpectRefused(const std::vector<std::string>& flags, const std::string& says,
                     const std::string& program = "prefill_worker/prefill_worker_emulated") {
    SCOPED_TRACE(says);
    std::vector<std::string> command = {program, "--model=" + model_, "--listen=127.0.0.1:0", "--http=127.0.0.1:0"};
    command.insert(command.end(), flags.begin(), flags.end());
    auto worker = Process::Start(command);
    ASSERT_TRUE(worker.ok()) << worker.status();
    const absl::StatusOr<int> code = (*worker)->WaitExit(absl::Seconds(60));
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_NE(*code, 0);
    EXPECT_NE((*worker)->stderr_text().find(says), std::string::npos) << (*worker)->stderr_text();
  }
  const std::string model_;
};

TEST_F(GpuClusterTest, TokensAreThoseOfTheCpu) {
  OneProcess oracle(model_, {"--numerics=f32", "--kv-dtype=f16", "--isa=scalar"});
  for (const std::string transport : {"nccl", "auto"}) {
    SCOPED_TRACE(transport);
    auto cluster = Start({"--isa=cuda"}, {"--isa=cuda"}, transport);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    uint64_t moved = 0;
    for (int i = 0; i < kRequests; ++i) {
      const Generation got = Generate(cluster->get(), 700 + i);
      ExpectTokens(got, &oracle, 700 + i);
      moved += got.summary.kv().bytes();
      if (transport == "nccl" && got.summary.kv().bytes() > 0) {
        EXPECT_EQ(got.summary.kv().detail(), "loopback, device memory");
      }
    }
    // From device to device, or down and up again.
    for (const auto& worker : (*cluster)->workers()) {
      const double copied = (*cluster)->Metric(worker->http, "baton_kv_blocks_copied_total");
      EXPECT_EQ(copied > 0, transport != "nccl") << worker->name << " copied " << copied;
    }
    EXPECT_GT(moved, 0u);
    auto status = (*cluster)->WorkerStatusOf(*(*cluster)->workers()[0]);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->backend(), "cuda");
    EXPECT_EQ(status->fingerprint().numerics_class(), "cuda-f32");
    const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
}

// While its blocks are read from its device's memory, and written to another's.
TEST_F(GpuClusterTest, AKilledPrefillWorkerHangsNothingAndItsNextLifeHandsOverFromItsDevice) {
  auto cluster = Start({"--isa=cuda"}, {"--isa=cuda"}, "nccl", "f32", /*num_prefill=*/2);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  WorkerProcess* victim = nullptr;
  for (auto& worker : (*cluster)->workers()) victim = worker->role == "prefill" ? worker.get() : victim;
  constexpr int kClients = 3, kEach = 4;
  std::vector<Generation> got(kClients * kEach);
  std::atomic<int> begun = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (int i = c * kEach; i < (c + 1) * kEach; ++i) {
        if (++begun == 5) victim->process->Signal(SIGKILL);
        got[i] = Generate(cluster->get(), 1000 + i);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE((*cluster)->Restart(*victim).ok());
  ASSERT_TRUE((*cluster)->WaitReady(absl::Seconds(60)).ok());
  for (auto& worker : (*cluster)->workers()) {
    if (worker->role == "prefill" && worker.get() != victim) worker->process->Signal(SIGKILL);
  }
  bool from_device = false;
  for (int i = kClients * kEach; i < kClients * kEach + 4; ++i) {
    got.push_back(Generate(cluster->get(), 1000 + i));
    from_device |= got.back().summary.kv().detail() == "loopback, device memory";
  }
  EXPECT_TRUE(from_device) << "a new communicator with the new process";
  OneProcess oracle(model_, {"--numerics=f32", "--kv-dtype=f16", "--isa=scalar"});
  for (size_t i = 0; i < got.size(); ++i) ExpectTokens(got[i], &oracle, 1000 + i);
}

// The CPU has not their bits, so what a cluster gives is compared with one emulated GPU that has one request at a time.
TEST_F(GpuClusterTest, TokensFromTensorCoresAreThoseOfOneProcess) {
  OneProcess oracle(model_, {"--numerics=bf16", "--kv-dtype=f16", "--isa=cuda"});
  auto cluster = Start({"--isa=cuda"}, {"--isa=cuda"}, "auto", "bf16");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int i = 0; i < kRequests / 2; ++i) ExpectTokens(Generate(cluster->get(), 800 + i), &oracle, 800 + i);
  EXPECT_EQ(ClassOf(cluster->get(), *(*cluster)->workers()[0]), "cuda-bf16-emulator");
}

// A setting that names other weights: a class of its own, on GPUs only.
TEST_F(GpuClusterTest, Fp8WeightsServeAndPairWithTheirLike) {
  OneProcess oracle(model_, {"--numerics=fp8", "--kv-dtype=f16", "--isa=cuda"});
  auto cluster = Start({"--isa=cuda"}, {"--isa=cuda"}, "auto", "fp8");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectTokens(Generate(cluster->get(), 900), &oracle, 900);
  EXPECT_EQ(ClassOf(cluster->get(), *(*cluster)->workers()[0]), "cuda-fp8-emulator");
}

TEST_F(GpuClusterTest, Fp8IsRefusedOnACpu) { ExpectRefused({"--numerics=fp8"}, "only GPUs have"); }

// A model over two GPUs in one pool and on one in the other: with as many slices they are of one class, and hand over as ever.
TEST_F(GpuClusterTest, PoolsOverOtherNumbersOfGpusGiveTheTokensOfOneProcess) {
  const std::string model = testing::TempDir() + "/tiny_split.gguf";
  ASSERT_TRUE(fakes::WriteTinyGguf({.ffn_dim = 128}, model).ok());
  OneProcess oracle(model, {"--numerics=f32", "--kv-dtype=f16", "--isa=cuda", "--reduction-slices=2"});
  const std::vector<std::string> one = {"--isa=cuda", "--reduction-slices=2"}, two = {"--isa=cuda", "--tensor-parallel=2"};
  for (const auto& [prefill, decode] : {std::pair{two, one}, {one, two}}) {
    SCOPED_TRACE(prefill.back() + " to " + decode.back());
    auto cluster = Start(prefill, decode, "auto", "f32", /*num_prefill=*/1, model);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    uint64_t moved = 0;
    for (int i = 0; i < kRequests / 2; ++i) {
      const Generation got = Generate(cluster->get(), 1000 + i);
      ExpectTokens(got, &oracle, 1000 + i);
      moved += got.summary.kv().bytes();
    }
    EXPECT_GT(moved, 0u);
    std::vector<std::string> backends;
    for (size_t w = 0; w < 2; ++w) {
      auto status = (*cluster)->WorkerStatusOf(*(*cluster)->workers()[w]);
      ASSERT_TRUE(status.ok()) << status.status();
      EXPECT_EQ(status->fingerprint().numerics_class(), "cuda-f32-s2");
      backends.push_back(status->backend());
    }
    std::sort(backends.begin(), backends.end());
    EXPECT_EQ(backends, (std::vector<std::string>{"cuda", "cuda/tp2"}));
    const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
}

// Each with what to do instead.
TEST_F(GpuClusterTest, SplitsThatCannotBeAreRefused) {
  ExpectRefused({"--numerics=f32", "--isa=auto", "--tensor-parallel=2"}, "set isa to cuda");
  ExpectRefused({"--numerics=f32", "--isa=cuda", "--tensor-parallel=2", "--kv-transport=nccl"}, "use auto, ucx or grpc");
  ExpectRefused({"--numerics=f32", "--isa=cuda", "--tensor-parallel=3"}, "powers of two");
  ExpectRefused({"--numerics=f32", "--isa=cuda", "--tensor-parallel=4"}, "2 KV heads");
  ExpectRefused({"--numerics=f32", "--isa=cuda", "--tensor-parallel=2"}, "its 96 inputs");
}

TEST_F(GpuClusterTest, OtherNumericsAreRefusedBeforeAnythingIsLoaded) {
  ExpectRefused({"--isa=cuda"}, "set numerics to f32");
}

TEST_F(GpuClusterTest, AProgramWithoutCudaSaysSo) {
  ExpectRefused({"--isa=cuda", "--numerics=f32"}, "built without it", "prefill_worker/prefill_worker");
}

}  // namespace
}  // namespace baton::e2e
