// The command line as a user meets it: exit codes, what goes to which stream, and the words of errors. Runs the real
// binary.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_baton.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CommandTest, HelpAndVersionAreData) {
  for (const char* flag : {"--help", "--version"}) {
    const Result r = RunBaton({flag});
    EXPECT_EQ(r.exit_code, 0);
    EXPECT_TRUE(Has(r.out, "baton")) << r.out;
    EXPECT_EQ(r.err, "");
  }
}

TEST(CommandTest, WrongUsageIsExitTwoWithANextStep) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"fly"},
                                                       {"plan"},
                                                       {"plan", "llama-3.1-8b", "--frobnicate"},
                                                       {"plan", "llama-3.1-8b", "--count", "0"},
                                                       {"plan", "llama-3.1-8b", "--count", "-1"},
                                                       {"plan", "llama-3.1-8b", "--context", "many"},
                                                       {"plan", "llama-3.1-8b", "--weights-dtype", "q3"},
                                                       {"plan", "llama-3.1-8b", "--accelerator", "8xh900"},
                                                       {"plan", "no-such-model"},
                                                       {"plan", "/"}};
  for (const auto& args : wrong) {
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 2) << (args.empty() ? "" : args.back());
    EXPECT_EQ(r.out, "");
    EXPECT_TRUE(Has(r.err, "error:")) << r.err;
    EXPECT_TRUE(Has(r.err, "next:")) << r.err;
  }
}

TEST(CommandTest, ErrorsAreJsonWhenAskedFor) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"plan", "no-such-model", "--json"}, {"plan", "--json"}, {"fly", "--json"}}) {
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 2);
    const Json json = Json::parse(r.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << r.out;
    EXPECT_EQ(json["error"]["exit_code"], 2);
    EXPECT_TRUE(json["error"]["message"].is_string());
  }
}

TEST(PlanCommandTest, TheExampleOfTheLiterature) {
  const Result r = RunBaton({"plan", "llama-3.1-405b"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.err, "");
  for (const char* figure : {"516,096", "68 GB", "235 GB", "15.1 ms", "66.2 tokens/s"}) {
    EXPECT_TRUE(Has(r.out, figure)) << figure << "\n" << r.out;
  }
}

TEST(PlanCommandTest, AnyAcceleratorByItsFigures) {
  const Result r = RunBaton({"plan", "llama-3.1-405b", "--memory", "80GB", "--bandwidth", "3.35TB/s", "--flops",
                             "1979TFLOP/s", "--count", "8", "--context", "128K", "--json"});
  EXPECT_EQ(r.exit_code, 0);
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["memory"]["left_bytes"], 235000000000);
  EXPECT_EQ(json["memory"]["conversations"], 3);
  EXPECT_EQ(json["compute_bound_batch"], 296);
}

TEST(PlanCommandTest, ConfigJson) {
  const std::string path = TempDir() + "/config.json";
  WriteFile(path, R"({"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
    "num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"max_position_embeddings":131072})");
  const Result r = RunBaton({"plan", path, "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["model"]["parameters"], 8030261248);
  EXPECT_EQ(json["memory"]["kv_bytes_per_token"], 131072);
}

TEST(PlanCommandTest, NotAModelFile) {
  const std::string path = TempDir() + "/noise.json";
  WriteFile(path, std::string("\x01\xff{{{", 5));
  const Result r = RunBaton({"plan", path});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_TRUE(Has(r.err, "not a JSON object")) << r.err;
}

}  // namespace
}  // namespace baton::cli
