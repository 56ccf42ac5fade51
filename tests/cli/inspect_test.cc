// `baton inspect` on small generated models, whole and damaged.
#include "cli/inspect.h"

#include <gtest/gtest.h>

#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

std::string WriteModel(const std::string& name, const fakes::TinyModelOptions& options) {
  const std::string path = TempDir() + "/" + name;
  EXPECT_TRUE(fakes::WriteTinyGguf(options, path).ok());
  return path;
}

TEST(InspectTest, ShapesTypesTokenizerAndKv) {
  const std::string path = WriteModel("tiny.gguf", {});
  const absl::StatusOr<Inspection> i = InspectModel(path);
  ASSERT_TRUE(i.ok()) << i.status();
  EXPECT_EQ(i->config.architecture, "llama");
  EXPECT_EQ(i->config.num_layers, 2);
  EXPECT_EQ(i->config.context_length, 512);
  EXPECT_EQ(i->tokenizer.kind, "gpt2");
  EXPECT_EQ(i->tokenizer.vocab_size, 256 + 3 + 21);
  EXPECT_EQ(i->tokenizer.bos_id, 256);
  EXPECT_NE(std::find(i->tokenizer.eos_ids.begin(), i->tokenizer.eos_ids.end(), 258), i->tokenizer.eos_ids.end());
  const uint64_t kv = 2u * 2 * i->config.num_kv_heads * i->config.head_dim * 2;  // layers, K and V, f16
  EXPECT_EQ(i->kv_bytes_per_token.at("f16"), kv);
  EXPECT_EQ(i->kv_bytes_per_token.at("f32"), 2 * kv);
  uint64_t tensors = 0;
  for (const auto& [dtype, count] : i->tensor_types) tensors += count.tensors;
  EXPECT_EQ(tensors, i->num_tensors);
  EXPECT_GT(i->tensor_types.at("q8_0").tensors, 0u);
  EXPECT_EQ(i->fingerprint.weights.size(), 64u);
}

TEST(InspectTest, FingerprintSeesOneChangedWeight) {
  const std::string path = WriteModel("one.gguf", {});
  std::string bytes = ReadFileOrEmpty(path);
  const auto before = InspectModel(path);
  ASSERT_TRUE(before.ok());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const std::string changed_path = TempDir() + "/changed.gguf";
  WriteFile(changed_path, bytes);
  const auto changed = InspectModel(changed_path);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_NE(before->fingerprint.weights, changed->fingerprint.weights);
  EXPECT_EQ(before->fingerprint.config, changed->fingerprint.config);
}

TEST(InspectTest, JsonHasTheDocumentedFields) {
  const Result r = RunBaton({"inspect", WriteModel("json.gguf", {.family = fakes::TinyFamily::kQwen3}), "--json"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.err, "");
  const auto json = nlohmann::json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["architecture"], "qwen3");
  EXPECT_EQ(json["shape"]["qk_norm"], true);
  EXPECT_TRUE(json["parameters"].is_number_unsigned());
  EXPECT_TRUE(json["tensor_types"].is_object());
  EXPECT_TRUE(json["tokenizer"]["eos_ids"].is_array());
  EXPECT_TRUE(json["chat_template"].is_boolean());
  EXPECT_TRUE(json["kv_bytes_per_token"]["f16"].is_number_unsigned());
  EXPECT_EQ(json["fingerprint"]["weights"].get<std::string>().size(), 64u);
}

TEST(InspectTest, HumanWordsAreData) {
  const Result r = RunBaton({"inspect", WriteModel("words.gguf", {})});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.err, "");
  for (const char* word : {"llama", "512 tokens", "q8_0", "gpt2", "fingerprint"}) {
    EXPECT_NE(r.out.find(word), std::string::npos) << word << "\n" << r.out;
  }
}

TEST(InspectTest, DamagedFilesAreExitOneAndNeverACrash) {
  const std::string good = ReadFileOrEmpty(WriteModel("good.gguf", {}));
  const std::string path = TempDir() + "/damaged.gguf";
  for (const size_t size :
       {size_t{0}, size_t{3}, size_t{4}, size_t{23}, size_t{100}, good.size() / 2, good.size() - 1}) {
    WriteFile(path, good.substr(0, size));
    const Result r = RunBaton({"inspect", path, "--json"});
    EXPECT_EQ(r.exit_code, 1) << size;
    EXPECT_TRUE(nlohmann::json::parse(r.out, nullptr, false)["error"]["message"].is_string()) << r.out;
  }
  EXPECT_EQ(RunBaton({"inspect", TempDir() + "/nothing.gguf"}).exit_code, 1);
  EXPECT_EQ(RunBaton({"inspect", "/"}).exit_code, 1);
  EXPECT_EQ(RunBaton({"inspect"}).exit_code, 2);
}

}  // namespace
}  // namespace baton::cli
