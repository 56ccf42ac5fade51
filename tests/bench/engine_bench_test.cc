// That engine_bench runs and says what it should; not how fast anything is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/bench/peer.h"
#include "tests/bench/report.h"
#include "tests/fakes/random_gguf.h"

namespace baton::bench {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class EngineBenchTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = absl::StrCat(testing::TempDir(), "/random.gguf");
    ASSERT_TRUE(fakes::WriteRandomGguf({.shape = fakes::FindModelShape("tiny")}, model_).ok());
  }
  int Run(const std::string& arguments) {
    return std::system(absl::StrCat("tests/bench/engine_bench --model ", model_, " --read_mib 8 --repetitions 1 ",
                                    "--prefill 40 --batch 1,3 --context 0,20 --steps 2 ", arguments)
                           .c_str());
  }
  std::string model_;
};

TEST_F(EngineBenchTest, ReportsEveryCellWithItsLimit) {
  const std::string json_path = absl::StrCat(testing::TempDir(), "/report.json");
  ASSERT_EQ(Run(absl::StrCat("--clock cpu --json ", json_path, " --plots ", testing::TempDir())), 0);
  const nlohmann::json report = nlohmann::json::parse(ReadFile(json_path));
  EXPECT_EQ(report["numerics"], "int");
  EXPECT_GT(report["limits"]["read_gbps"].get<double>(), 0);
  std::vector<std::string> names;
  for (const auto& cell : report["cells"]) {
    names.push_back(cell["name"]);
    EXPECT_GT(cell["tokens_per_second"].get<double>(), 0);
    EXPECT_TRUE(cell["share"].is_number());
    EXPECT_EQ(cell["limit"], cell["phase"] == "prefill" ? "int8" : "read");
    EXPECT_EQ(cell["samples"].size(), 1u);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"prefill 40", "decode b1 c0", "decode b3 c0", "decode b1 c20",
                                             "decode b3 c20"}));
  for (const char* plot : {"throughput.svg", "itl.svg"}) {
    EXPECT_NE(ReadFile(absl::StrCat(testing::TempDir(), "/", plot)).find("Baton, context 20"), std::string::npos);
  }
}

TEST_F(EngineBenchTest, PeerThatIsNotThereIsAnError) {
  EXPECT_NE(Run("--peer /no/such/llama-bench 2>/dev/null"), 0);
}

TEST_F(EngineBenchTest, PeerThatFailsIsAnError) { EXPECT_NE(Run("--peer x=/bin/false 2>/dev/null"), 0); }

TEST(RandomGgufTest, SameSeedSameFile) {
  const auto write = [](uint64_t seed) {
    const std::string path = absl::StrCat(testing::TempDir(), "/seeded.gguf");
    fakes::RandomGgufOptions options{.shape = fakes::FindModelShape("tiny"), .dtype = kernels::DType::kQ4_K};
    options.seed = seed;
    EXPECT_TRUE(fakes::WriteRandomGguf(options, path).ok());
    return ReadFile(path);
  };
  const std::string first = write(1);
  EXPECT_EQ(first, write(1));
  EXPECT_NE(first, write(2));
}

TEST(RandomGgufTest, EveryFormatLoads) {
  using kernels::DType;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                      DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const std::string path = absl::StrCat(testing::TempDir(), "/", kernels::Name(dtype), ".gguf");
    ASSERT_TRUE(fakes::WriteRandomGguf({.shape = fakes::FindModelShape("tiny"), .dtype = dtype}, path).ok());
    ModelBench::Options options;
    options.path = path;
    options.max_tokens = 16;
    const auto bench = ModelBench::Load(options);
    ASSERT_TRUE(bench.ok()) << kernels::Name(dtype) << ": " << bench.status();
    EXPECT_GT((*bench)->Prefill(8), 0);
  }
}

// What llama-bench -o json and llama-batched-bench print.
TEST(PeerTest, ReadsTheirOutput) {
  EXPECT_DOUBLE_EQ(ParseBenchJson("noise\n[ {\"n_prompt\": 16, \"avg_ts\": 12.5} ]"), 12.5);
  EXPECT_LT(ParseBenchJson("error: no model"), 0);
  EXPECT_LT(ParseBenchJson("[ {\"n_prompt\": 16} ]"), 0);
  EXPECT_DOUBLE_EQ(ParseBatchedTable("main: n_kv_max = 64\n"
                                     "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n"
                                     "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n"
                                     "|     1 |      4 |    8 |     40 |    0.001 |  7117.44 |    0.035 |   926.75 |    0.036 |  1121.93 |\n"),
                   926.75);
  EXPECT_LT(ParseBatchedTable("|    PP |     TG |    B |\n"), 0);
}

TEST(ReportTest, RatioIsTheMedianOfPairs) {
  CellResult result;
  result.ours = {10, 20, 40};
  result.peers["peer"] = {10, 10, 10};  // pairs 1, 2, 4
  EXPECT_DOUBLE_EQ(result.Ratio("peer"), 2);
}

TEST(ReportTest, Shares) {
  ModelCost cost{.layer_weights = 1000000, .head_weights = 4000000, .layer_bytes = 500000, .head_bytes = 250000,
                 .kv_token_bytes = 100};
  Peaks peaks;
  peaks.int8_gops = 100;
  peaks.read_gbps = 10;
  CellResult prefill;
  prefill.cell = {.prefill = true, .tokens = 4};
  prefill.ours = {10000};
  FillShare(cost, peaks, true, &prefill);
  EXPECT_NEAR(prefill.share, 10000 * 2 * (1e6 + 1e6) / 100e9, 1e-12);  // a quarter of the head for each token
  CellResult decode;
  decode.cell = {.prefill = false, .tokens = 20, .batch = 5, .context = 90};
  decode.ours = {5000};  // a thousand steps a second
  FillShare(cost, peaks, true, &decode);
  EXPECT_NEAR(decode.share, 1000 * (750000 + 5 * 100 * 100) / 10e9, 1e-12);
}

}  // namespace
}  // namespace baton::bench
