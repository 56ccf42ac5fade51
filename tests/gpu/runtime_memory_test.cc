// What a worker compares with the devices' memory before it loads, on emulated devices: of 1 GiB each, but for the first.
#include <gtest/gtest.h>

#include <string>

#include "cli/model_file.h"
#include "common/config.h"
#include "engine/runtime.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::engine {
namespace {

std::string ModelPath() { return testing::TempDir() + "/memory.gguf"; }

absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const std::vector<std::string>& flags) {
  EXPECT_TRUE(fakes::WriteTinyGguf({.tied_head = false, .num_kv_heads = 4, .ffn_dim = 2048}, ModelPath()).ok());
  std::vector<std::string> all = {"--model=" + ModelPath(), "--isa=cuda", "--numerics=f32", "--kv-memory-mib=4"};
  all.insert(all.end(), flags.begin(), flags.end());
  return LoadedModel::Load(LoadConfig(ProcessRole::kWorker, all, {}).value().config, {});
}

// Of 1.2 GiB for 65,536 rows each of four has them all, though it is less than the four have together.
TEST(RuntimeMemoryTest, ActivationsAreCountedForEachOfSeveralGpus) {
  const absl::Status refused = Load({"--tensor-parallel=4", "--max-batch-tokens=65536"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("the devices' memory"), std::string::npos) << refused;
}

TEST(RuntimeMemoryTest, ALoadedModelSaysWhatAllGpusHold) {
  const auto one = Load({"--reduction-slices=4"}), four = Load({"--tensor-parallel=4"});
  ASSERT_TRUE(one.ok() && four.ok()) << one.status() << four.status();
  EXPECT_EQ((*four)->memory().scratch_bytes, 4 * (*one)->memory().scratch_bytes);
  EXPECT_EQ((*four)->memory().vector_bytes, 4 * (*one)->memory().vector_bytes);
  EXPECT_GT((*four)->memory().weight_bytes, (*one)->memory().weight_bytes);
  EXPECT_LT((*four)->memory().weight_bytes, 4 * (*one)->memory().weight_bytes);
}

// `baton plan` says from the file's header what the emulated GPUs then hold.
TEST(RuntimeMemoryTest, ThePlanIsWhatIsLoaded) {
  const auto loaded = Load({"--tensor-parallel=4", "--max-context=300"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto plan = cli::PlanModelFileOnGpus(ModelPath(), {.max_context = 300}, {.ranks = 4, .slices = 4}, /*fp8=*/false);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(4 * (plan->memory.split_bytes + plan->memory.head_bytes), (*loaded)->memory().weight_bytes);
  EXPECT_EQ(4 * plan->memory.embedding_bytes, (*loaded)->memory().embedding_bytes);
  EXPECT_EQ(4 * plan->memory.activation_bytes, (*loaded)->memory().scratch_bytes);
  EXPECT_GT(plan->memory.array_bytes, 0u);
}

}  // namespace
}  // namespace baton::engine
