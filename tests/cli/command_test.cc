// The command line as a user meets it: exit codes, what goes to which stream, and the words of errors. Runs the real
// binary.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

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

TEST(CommandTest, MisspellingsNameTheNearest) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"benhc"}, "did you mean bench?"},
      {{"config", "dmup"}, "did you mean dump?"},
      {{"bench", "--concurency", "3"}, "did you mean --concurrency?"},
      {{"bench", "--input-token=3"}, "did you mean --input-tokens?"},
      {{"complete", "--max-contxt=3", "x"}, "did you mean --max-context?"},
      {{"inspect", "--jsn", "x"}, "did you mean --json?"}};
  for (const auto& [args, hint] : wrong) {
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 2) << args[0];
    EXPECT_TRUE(Has(r.err, hint)) << r.err;
    EXPECT_TRUE(Has(r.err, "next:")) << r.err;
  }
  const Result other = RunBaton({"xylophone"});
  EXPECT_FALSE(Has(other.err, "did you mean")) << other.err;
}

// The commands that `baton --help` lists.
std::vector<std::string> Commands() {
  std::vector<std::string> names;
  std::istringstream lines(RunBaton({"--help"}).out);
  bool listing = false;
  for (std::string line; std::getline(lines, line);) {
    if (listing && line.size() > 3 && line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line.rfind("Subcommands:", 0) == 0) listing = true;
    if (listing && line.empty()) break;
  }
  return names;
}

TEST(CommandTest, EveryCommandHasAnExample) {
  const std::vector<std::string> commands = Commands();
  EXPECT_GE(commands.size(), 12u);
  for (const std::string& command : commands) {
    const Result r = RunBaton({command, "--help"});
    EXPECT_EQ(r.exit_code, 0) << command;
    EXPECT_TRUE(Has(r.out, "Example")) << command;
    EXPECT_TRUE(Has(r.out, "baton " + command)) << command;
  }
}

// What bash offers for `words`, the last of which is being typed.
std::string Complete(const std::string& words) {
  const std::string script = TempDir() + "/completion.bash", result = TempDir() + "/completion.out";
  WriteFile(script, RunBaton({"completion", "bash"}).out + "\nCOMP_WORDS=(" + words +
                        ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_baton\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  EXPECT_EQ(std::system(("cd " + TempDir() + " && bash -eu " + script + " > " + result + " 2>&1").c_str()), 0)
      << ReadFileOrEmpty(result);
  return "\n" + ReadFileOrEmpty(result);
}

TEST(CompletionTest, BashOffersCommandsFlagsAndFiles) {
  WriteFile(TempDir() + "/model-x.gguf", "");
  const std::string commands = Complete("baton ''");
  for (const std::string& command : Commands()) EXPECT_TRUE(Has(commands, "\n" + command + "\n")) << commands;
  EXPECT_EQ(Complete("baton ben"), "\nbench\n");
  EXPECT_EQ(Complete("baton bench --concur"), "\n--concurrency\n");
  EXPECT_EQ(Complete("baton complete --max-cont"), "\n--max-context\n") << "settings are flags too";
  EXPECT_EQ(Complete("baton tokenizer ex"), "\nexport\n");
  EXPECT_EQ(Complete("baton tokenizer export --for"), "\n--force\n");
  EXPECT_EQ(Complete("baton completion z"), "\nzsh\n");
  EXPECT_EQ(Complete("baton inspect model-"), "\nmodel-x.gguf\n");
  EXPECT_EQ(Complete("baton up --model = model-"), "\nmodel-x.gguf\n");
  EXPECT_EQ(Complete("baton plan --xyz"), "\n\n");
}

TEST(CompletionTest, ZshScriptNamesEveryCommand) {
  const std::string script = RunBaton({"completion", "zsh"}).out;
  EXPECT_EQ(script.rfind("#compdef baton", 0), 0u);
  for (const std::string& command : Commands()) EXPECT_TRUE(Has(script, "_baton_" + command + "() {")) << command;
  const std::string path = TempDir() + "/_baton";
  WriteFile(path, script);
  if (std::system("command -v zsh > /dev/null") != 0) GTEST_SKIP() << "no zsh here";
  EXPECT_EQ(std::system(("zsh -n " + path).c_str()), 0);
}

TEST(ConfigCommandTest, DumpSaysWhereEachValueCameFrom) {
  const std::string file = TempDir() + "/baton.yaml";
  WriteFile(file, "max_context: 4096\nthreads: 3\n");
  const Result r = RunBaton({"config", "dump", "--config", file, "--block-size", "32"}, "", {"BATON_THREADS=2"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* line : {"max_context: 4096", "baton.yaml:1", "threads: 2", "environment BATON_THREADS",
                           "block_size: 32", "flag --block-size", "default"}) {
    EXPECT_TRUE(Has(r.out, line)) << line << "\n" << r.out;
  }
  const Result j = RunBaton({"config", "dump", "--json", "--role", "worker", "--threads=5"});
  const Json json = Json::parse(j.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << j.out;
  bool found = false;
  for (const Json& setting : json["settings"]) {
    if (setting["name"] != "threads") continue;
    found = true;
    EXPECT_EQ(setting["value"], "5");
    EXPECT_EQ(setting["origin"], "flag --threads");
  }
  EXPECT_TRUE(found);
}

TEST(ConfigCommandTest, CheckFindsWhatReadingAloneDoesNot) {
  EXPECT_EQ(RunBaton({"config", "check"}).exit_code, 0);
  const std::string key = TempDir() + "/short.key", yaml = TempDir() + "/wrong.yaml";
  WriteFile(key, "too short");
  WriteFile(yaml, "max_contxt: 4096\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--cluster-key-file", key}, "32 or more"},
      {{"--model", "/no/such.gguf"}, "/no/such.gguf"},
      {{"--listen", "nonsense"}, "listen"},
      {{"--config", yaml}, "max_context"},
      {{"--block-size", "0"}, "block_size"}};
  for (const auto& [more, words] : wrong) {
    std::vector<std::string> args = {"config", "check"};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 2) << more[0];
    EXPECT_TRUE(Has(r.err, words) || Has(r.err, more[0])) << r.err;
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
