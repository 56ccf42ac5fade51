#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Env = std::map<std::string, std::string>;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string WriteFile(const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/config-", getpid(), ".yaml");
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ErrorOf(const std::vector<std::string>& args, const Env& env = {}) {
  const auto loaded = LoadConfig(ProcessRole::kWorker, args, env);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return Message(loaded.status());
}

std::string YamlError(const std::string& text) {
  LoadedConfig loaded;
  const absl::Status status = ApplyYaml(text, "b.yaml", &loaded);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return Message(status);
}

TEST(ConfigTest, PrecedenceIsFlagEnvironmentFileDefault) {
  const std::string path = WriteFile("max_sequences: 1\nmax_queue: 11\nblock_size: 4\n");
  const auto loaded = LoadConfig(ProcessRole::kWorker, {"--config=" + path, "--max-sequences=3"},
                                 {{"BATON_MAX_SEQUENCES", "2"}, {"BATON_MAX_QUEUE", "22"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.max_sequences(), 3u);
  EXPECT_EQ(loaded->config.max_queue(), 22u);
  EXPECT_EQ(loaded->config.block_size(), 4u);
  EXPECT_EQ(loaded->config.max_batch_tokens(), 512u);
  EXPECT_EQ(loaded->origins.at("max_sequences"), "flag --max-sequences");
  EXPECT_EQ(loaded->origins.at("max_queue"), "environment BATON_MAX_QUEUE");
  EXPECT_EQ(loaded->origins.at("block_size"), "file " + path + ":3");
  EXPECT_EQ(loaded->origins.at("max_batch_tokens"), "default");
  EXPECT_TRUE(loaded->has_flag("max_sequences"));
  EXPECT_FALSE(loaded->has_flag("max_queue"));
}

TEST(ConfigTest, EverySchemaFieldHasARuleAndHelp) {
  for (const ConfigFieldInfo& field : ConfigFields()) {
    EXPECT_NE(field.help, "") << field.name;
    // A field without a rule answers INTERNAL.
    const auto loaded = LoadConfig(ProcessRole::kWorker, {field.flag + "=\x01"}, {});
    EXPECT_NE(loaded.status().code(), absl::StatusCode::kInternal) << field.name;
  }
  EXPECT_THAT(ConfigHelp(), AllOf(HasSubstr("--kv-memory-mib integer"), HasSubstr("MiB for KV blocks; default 512")));
}

TEST(ConfigTest, DefaultsMatchTheSchemasComments) {
  const auto loaded = LoadConfig(ProcessRole::kWorker, std::vector<std::string>{}, {});
  ASSERT_TRUE(loaded.ok());
  const std::string dump = DumpConfig(*loaded);
  for (const ConfigFieldInfo& field : ConfigFields()) {
    const size_t at = field.help.find("default ");
    if (at == std::string::npos || field.name == "listen" || field.name == "http") continue;  // two defaults
    const std::string said = field.help.substr(at + 8, field.help.find_first_of(" ;", at + 8) - at - 8);
    if (field.type == "string") {
      EXPECT_THAT(dump, HasSubstr(field.name + ": '" + said + "'  # default"));
    } else {
      EXPECT_THAT(dump, HasSubstr(field.name + ": " + said + "  # default"));
    }
  }
  EXPECT_EQ(loaded->config.listen(), "127.0.0.1:0");
  EXPECT_FALSE(loaded->config.has_model());
  EXPECT_THAT(dump, HasSubstr("# model: unset\n"));
}

TEST(ConfigTest, RouterHasFixedPorts) {
  const auto loaded = LoadConfig(ProcessRole::kRouter, std::vector<std::string>{}, {});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->config.listen(), "127.0.0.1:50051");
  EXPECT_EQ(loaded->config.http(), "127.0.0.1:8000");
}

TEST(ConfigTest, KvDtypeFollowsNumerics) {
  EXPECT_EQ(LoadConfig(ProcessRole::kWorker, {"--numerics=f32"}, {})->config.kv_dtype(), "f32");
  EXPECT_EQ(LoadConfig(ProcessRole::kWorker, {"--numerics=int"}, {})->config.kv_dtype(), "f16");
  EXPECT_EQ(LoadConfig(ProcessRole::kWorker, {"--numerics=f32", "--kv-dtype=bf16"}, {})->config.kv_dtype(), "bf16");
}

TEST(ConfigTest, FlagSpellings) {
  const auto loaded =
      LoadConfig(ProcessRole::kWorker, {"--max-queue", "7", "--no-prefix-cache", "--kv_lease_ms=200"}, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.max_queue(), 7u);
  EXPECT_FALSE(loaded->config.prefix_cache());
  EXPECT_EQ(loaded->config.kv_lease_ms(), 200u);
  EXPECT_TRUE(LoadConfig(ProcessRole::kWorker, {"--no-prefix-cache=false"}, {})->config.prefix_cache());
}

TEST(ConfigTest, UnknownNamesComeWithTheNearest) {
  EXPECT_THAT(ErrorOf({"--max-contxt=5"}), AllOf(HasSubstr("--max-contxt"), HasSubstr("--max-context?")));
  EXPECT_THAT(YamlError("model: a\nkv_memory_mb: 5\n"), AllOf(HasSubstr("b.yaml:2"), HasSubstr("kv_memory_mib?")));
  EXPECT_THAT(ErrorOf({"--no-max-queue"}), HasSubstr("unknown flag"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("unexpected argument \"stray\""));
}

TEST(ConfigTest, MisspelledEnvironmentWarnsAndForeignIsIgnored) {
  const auto loaded = LoadConfig(ProcessRole::kWorker, std::vector<std::string>{},
                                 {{"BATON_MAX_QUEU", "7"}, {"BATON_SERVICE_HOST", "10.0.0.1"}, {"BATON_CACHE", "/x"}});
  ASSERT_TRUE(loaded.ok());
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_THAT(loaded->warnings[0], HasSubstr("did you mean BATON_MAX_QUEUE?"));
}

TEST(ConfigTest, WrongValuesNameFieldValueAndExpectation) {
  EXPECT_THAT(ErrorOf({"--max-queue=many"}),
              AllOf(HasSubstr("flag --max-queue"), HasSubstr("\"many\""), HasSubstr("from 1 to 1048576")));
  EXPECT_THAT(ErrorOf({"--block-size=0"}), HasSubstr("from 1 to 256"));
  EXPECT_THAT(ErrorOf({"--block-size=-1"}), HasSubstr("from 1 to 256"));
  EXPECT_THAT(ErrorOf({"--block-size=99999999999999999999"}), HasSubstr("from 1 to 256"));
  EXPECT_THAT(ErrorOf({"--block-size=1.5"}), HasSubstr("a whole number"));
  EXPECT_THAT(ErrorOf({"--isa=sse"}), HasSubstr("one of auto, scalar, avx2, avx512"));
  EXPECT_THAT(ErrorOf({"--prefix-cache=maybe"}), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf({"--model="}), HasSubstr("not empty"));
  EXPECT_THAT(ErrorOf({"--model"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--model", "--max-queue=1"}), HasSubstr("--model needs a value"));
  EXPECT_THAT(ErrorOf({}, {{"BATON_THREADS", "0"}}), AllOf(HasSubstr("environment BATON_THREADS"), HasSubstr("1024")));
  EXPECT_THAT(YamlError("\n\nthreads: [1]\n"), HasSubstr("b.yaml:3"));
}

TEST(ConfigTest, HostileYaml) {
  EXPECT_THAT(YamlError("model: a\nmodel: b\n"), AllOf(HasSubstr("b.yaml:2"), HasSubstr("twice")));
  EXPECT_THAT(YamlError("a: &x 1\nb: *x\n"), HasSubstr("b.yaml"));
  EXPECT_THAT(YamlError("model:\n  nested: 1\n"), HasSubstr("nested"));
  EXPECT_THAT(YamlError("- model\n"), HasSubstr("lists"));
  EXPECT_THAT(YamlError("just text\n"), HasSubstr("name: value"));
  EXPECT_THAT(YamlError("model:\n"), HasSubstr("no value"));
  EXPECT_THAT(YamlError("model: a: b: c\n"), HasSubstr("b.yaml:1"));
  EXPECT_THAT(YamlError(std::string(100000, '[')), HasSubstr("b.yaml"));
  EXPECT_THAT(YamlError(std::string(100000, '{')), HasSubstr("b.yaml"));
  EXPECT_THAT(YamlError("model: a\n\xff\xfe garbage"), AllOf(HasSubstr("b.yaml:2"), HasSubstr("UTF-8")));
  EXPECT_THAT(YamlError(std::string("model: \0a", 9)), AllOf(HasSubstr("b.yaml:1"), HasSubstr("control character")));
  EXPECT_THAT(YamlError(std::string(2 << 20, ' ')), HasSubstr("at most 1048576"));
  std::string many;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&many, "k", i, ": 1\n");
  EXPECT_THAT(YamlError(many), HasSubstr("more than 1000"));
}

TEST(ConfigTest, EmptyYamlIsFine) {
  LoadedConfig loaded;
  EXPECT_TRUE(ApplyYaml("", "b.yaml", &loaded).ok());
  EXPECT_TRUE(ApplyYaml("# only a comment\n", "b.yaml", &loaded).ok());
}

TEST(ConfigTest, MissingFile) {
  const auto loaded = LoadConfig(ProcessRole::kWorker, {"--config=/nonexistent/x.yaml"}, {});
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(loaded.status()), HasSubstr("/nonexistent/x.yaml"));
}

TEST(ConfigTest, DumpReadsBack) {
  const auto loaded = LoadConfig(ProcessRole::kWorker, {"--model=it's \"x\".gguf", "--no-prefix-cache"}, {});
  ASSERT_TRUE(loaded.ok());
  LoadedConfig again;
  const absl::Status status = ApplyYaml(DumpConfig(*loaded), "dump", &again);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(again.config.SerializeAsString(), loaded->config.SerializeAsString());
}

TEST(ConfigTest, SplitKeepsValuesWithTheirFlags) {
  const auto [ours, rest] = SplitConfigFlags(
      {"--model", "m.gguf", "--json", "--prefix-cache", "hello", "--router=h:1", "--", "--model", "x"});
  EXPECT_EQ(ours, (std::vector<std::string>{"--model", "m.gguf", "--prefix-cache", "--router=h:1"}));
  EXPECT_EQ(rest, (std::vector<std::string>{"--json", "hello", "--", "--model", "x"}));
}

}  // namespace
}  // namespace baton
