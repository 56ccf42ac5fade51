// `complete --local`, `chat --local` and `plan FILE.gguf` on small generated models. Runs the real binary.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/runtime.h"
#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

std::string Model() {
  static const std::string* const path = [] {
    auto* p = new std::string(TempDir() + "/local.gguf");
    EXPECT_TRUE(fakes::WriteTinyGguf({}, *p).ok());
    return p;
  }();
  return *path;
}

std::vector<std::string> Local(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"complete", "--local", "--model", Model(), "--kv-memory-mib", "8", "--threads", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Json RunJson(const std::vector<std::string>& more, const std::string& input = "") {
  std::vector<std::string> args = Local(more);
  args.push_back("--json");
  const Result r = RunBaton(args, input);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Json json = Json::parse(r.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << r.out;
  return json;
}

TEST(LocalCompleteTest, JsonHasEveryDocumentedField) {
  const Json json = RunJson({"Hello", "--seed", "7", "--max-tokens", "12", "--ignore-eos"});
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_EQ(json["token_ids"].size(), 12u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["seed"], 7);
  EXPECT_GE(json["usage"]["prompt"].get<int>(), 1);
  EXPECT_EQ(json["usage"]["cached"], 0);
  EXPECT_EQ(json["usage"]["completion"], 12);
  for (const char* key : {"queue", "prefill", "transfer", "first_token", "itl_p50", "itl_p99", "total"}) {
    EXPECT_TRUE(json["timings_ms"][key].is_number()) << key;
  }
  EXPECT_GT(json["timings_ms"]["total"].get<double>(), 0);
  for (const char* key : {"bytes", "blocks"}) EXPECT_EQ(json["kv"][key], 0) << key;
  EXPECT_EQ(json["kv"]["transport"], "none");
  EXPECT_EQ(json["workers"]["prefill"], "local");
}

TEST(LocalCompleteTest, SameSeedSameAnswerOtherSeedAnother) {
  const std::vector<std::string> args = {"Hello", "--max-tokens", "24", "--temperature", "1.5", "--ignore-eos"};
  auto with_seed = [&](const char* seed) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"--seed", seed});
    return RunJson(all)["token_ids"];
  };
  const Json first = with_seed("1");
  EXPECT_EQ(with_seed("1"), first);
  EXPECT_NE(with_seed("2"), first);
}

TEST(LocalCompleteTest, StdoutIsTheTextAndNothingElse) {
  const std::vector<std::string> args = {"Hello", "--seed", "7", "--max-tokens", "12", "--ignore-eos"};
  const Result r = RunBaton(Local(args));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  std::string text = RunJson(args)["text"];
  if (text.empty() || text.back() != '\n') text += "\n";
  EXPECT_EQ(r.out, text);
  EXPECT_NE(r.err.find("TTFT"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("seed 7"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos) << "no terminal, no colours";
  std::vector<std::string> quiet = args;
  quiet.push_back("--quiet");
  EXPECT_EQ(RunBaton(Local(quiet)).err, "");
}

TEST(LocalCompleteTest, PromptFromStdinEqualsArgument) {
  const std::vector<std::string> sampling = {"--temperature", "0", "--max-tokens", "8", "--ignore-eos"};
  std::vector<std::string> by_argument = sampling;
  by_argument.push_back("one two");
  EXPECT_EQ(RunJson(sampling, "one two\n")["token_ids"], RunJson(by_argument)["token_ids"]);
}

TEST(LocalCompleteTest, SeveralChoicesAreAnArrayAndTheFirstIsTheOnlyOnes) {
  const std::vector<std::string> one = {"Hello", "--seed",        "3",   "--max-tokens",
                                        "10",    "--temperature", "1.3", "--ignore-eos"};
  std::vector<std::string> three = one;
  three.insert(three.end(), {"--n", "3"});
  const Json json = RunJson(three);
  ASSERT_EQ(json["choices"].size(), 3u);
  EXPECT_FALSE(json.contains("text"));
  EXPECT_EQ(json["choices"][0]["token_ids"], RunJson(one)["token_ids"]);
  EXPECT_NE(json["choices"][0]["token_ids"], json["choices"][1]["token_ids"]);
  EXPECT_EQ(json["usage"]["completion"], 30);
}

TEST(LocalCompleteTest, AStopStringCutsTheTextAndUsageCountsToTheMatch) {
  const std::vector<std::string> args = {"Hello", "--temperature", "0", "--max-tokens", "40", "--ignore-eos"};
  const Json whole = RunJson(args);
  // A printable pair of characters out of the middle of the answer; nonsense text has some.
  const std::string text = whole["text"];
  std::string stop;
  for (size_t i = 4; i + 1 < text.size() && stop.empty(); ++i) {
    const auto plain = [&](size_t k) { return text[k] > ' ' && text[k] < 0x7F && text[k] != '-'; };
    if (plain(i) && plain(i + 1)) stop = text.substr(i, 2);
  }
  if (stop.empty()) GTEST_SKIP() << "this model writes no two ASCII characters in a row: " << text;
  std::vector<std::string> stopped = args;
  stopped.insert(stopped.end(), {"--stop", stop});
  const Json cut = RunJson(stopped);
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["stop_string"], stop);
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["usage"]["completion"].get<size_t>(), cut["token_ids"].size());
  EXPECT_LE(cut["token_ids"].size(), whole["token_ids"].size());
}

TEST(LocalCompleteTest, TokenIdsAndLogprobs) {
  const Json json = RunJson(
      {"--token-ids", "72,101,108", "--max-tokens", "4", "--temperature", "0", "--logprobs", "2", "--ignore-eos"});
  EXPECT_EQ(json["usage"]["prompt"], 3);
  ASSERT_EQ(json["logprobs"].size(), 4u);
  EXPECT_LE(json["logprobs"][0]["logprob"].get<double>(), 0);
  EXPECT_EQ(json["logprobs"][0]["top"].size(), 2u);
  EXPECT_EQ(json["logprobs"][0]["top"][0]["token_id"], json["token_ids"][0]);  // greedy takes the likeliest
}

TEST(LocalCompleteTest, OneTokenNeedsNoDecode) {
  const Json json = RunJson({"Hello", "--max-tokens", "1", "--temperature", "0"});
  EXPECT_EQ(json["token_ids"].size(), 1u);
  EXPECT_EQ(json["workers"]["decode"], "");
}

TEST(LocalCompleteTest, BadRequestsAreTypedAndExitTwo) {
  const std::vector<std::vector<std::string>> bad = {
      {""},
      {"x", "--temperature", "-1"},
      {"x", "--temperature", "nan"},
      {"x", "--top-p", "0"},
      {"x", "--top-p", "1.5"},
      {"x", "--max-tokens", "0"},
      {"x", "--max-tokens", "99999999999"},
      {"x", "--n", "17"},
      {"x", "--seed", "-1"},
      {"x", "--seed", "18446744073709551616"},
      {"x", "--logit-bias", "nonsense"},
      {"x", "--logit-bias", "999999=1"},
      {"x", "--logit-bias", "1=1", "--logit-bias", "1=2"},
      {"x", "--stop", ""},
      {"x", "--token-ids", "1,2"},
      {"--token-ids", "1,two"},
      {"--token-ids", "999999"},
      {"--token-ids", "-1"},
      {"\xff\xfe"},
      {"x", "--system", "be kind"},
      {"x", "--timeout", "-1"},
      {"x", "y"},
      {"x", "--block-size", "0"},
      {"x", "--numerics", "quantum"},
  };
  for (const auto& more : bad) {
    const Result r = RunBaton(Local(more));
    EXPECT_EQ(r.exit_code, 2) << more.back() << ": " << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("error:"), std::string::npos) << more.back();
    EXPECT_NE(r.err.find("next:"), std::string::npos) << more.back();
  }
}

TEST(LocalCompleteTest, APromptOverTheLimitNamesBothNumbers) {
  std::string prompt;
  for (int i = 0; i < 700; ++i) prompt += "z ";
  const Result r = RunBaton(Local({"--max-tokens", "4"}), prompt);
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("512"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("1400"), std::string::npos) << r.err;
}

TEST(LocalCompleteTest, BadModels) {
  EXPECT_EQ(RunBaton({"complete", "--local", "x"}, "", {"BATON_MODEL="}).exit_code, 2);
  EXPECT_EQ(RunBaton({"complete", "--local", "--model", TempDir() + "/none.gguf", "x"}).exit_code, 1);
  WriteFile(TempDir() + "/cut.gguf", ReadFileOrEmpty(Model()).substr(0, 3000));
  const Result r = RunBaton({"complete", "--local", "--model", TempDir() + "/cut.gguf", "x", "--json"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(Json::parse(r.out, nullptr, false)["error"]["message"].is_string()) << r.out;
}

TEST(LocalChatTest, AConversationInOneProcess) {
  const Result once = RunBaton(Local({"--chat", "Hi", "--max-tokens", "4", "--seed", "1", "--json"}));
  EXPECT_EQ(once.exit_code, 0) << once.err;
  const Result r = RunBaton({"chat", "--local", "--model", Model(), "--kv-memory-mib", "8", "--threads", "1",
                             "--max-tokens", "4", "--seed", "1", "--json"},
                            "Hi\nagain\n/quit\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const size_t newline = r.out.find('\n');
  const Json first = Json::parse(r.out.substr(0, newline), nullptr, false);
  const Json second = Json::parse(r.out.substr(newline + 1), nullptr, false);
  ASSERT_TRUE(first.is_object() && second.is_object()) << r.out;
  EXPECT_EQ(first["token_ids"], Json::parse(once.out, nullptr, false)["token_ids"]);
  EXPECT_GT(second["usage"]["prompt"].get<int>(), first["usage"]["prompt"].get<int>());
}

// Spec row S7: the ledger is exact against what a worker really allocates.
TEST(PlanGgufTest, PrintsWhatTheWorkerAllocates) {
  const Result r = RunBaton({"plan", Model(), "--json", "--kv-memory-mib", "8"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  v1::Config config;
  config.set_model(Model());
  config.set_kv_memory_mib(8);
  const auto worker = engine::LoadedModel::Load(config, {});
  ASSERT_TRUE(worker.ok()) << worker.status();
  const auto& memory = (*worker)->memory();
  EXPECT_EQ(json["worker"]["matrix_bytes"], memory.weight_bytes);
  EXPECT_EQ(json["worker"]["embedding_bytes"], memory.embedding_bytes);
  EXPECT_EQ(json["worker"]["vector_bytes"], memory.vector_bytes);
  EXPECT_EQ(json["worker"]["scratch_bytes"], memory.scratch_bytes);
  EXPECT_EQ(json["memory"]["weights_bytes"], memory.total());
  EXPECT_EQ(json["worker"]["kv_blocks"], (*worker)->num_blocks());
  EXPECT_EQ(json["worker"]["kv_block_bytes"], (*worker)->kv_layout().block_bytes());
  EXPECT_EQ(json["memory"]["kv_bytes_per_token"], (*worker)->kv_layout().token_bytes());
  EXPECT_EQ(json["worker"]["total_bytes"],
            memory.total() + (*worker)->num_blocks() * (*worker)->kv_layout().block_bytes());
}

TEST(PlanGgufTest, HumanWordsAndRooflineByFigures) {
  const Result r = RunBaton({"plan", Model(), "--bandwidth", "20GB/s", "--flops", "100G"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* word : {"this machine", "One worker", "KV pool", "tokens/s", "20.0 GB/s"}) {
    EXPECT_NE(r.out.find(word), std::string::npos) << word << "\n" << r.out;
  }
  EXPECT_EQ(RunBaton({"plan", Model(), "--kv-dtype", "fp8"}).exit_code, 2);
}

// From the header: no GPU is here, and nothing is loaded.
TEST(PlanGgufTest, OverGpusItSaysWhatEachHolds) {
  const Result r = RunBaton({"plan", Model(), "--tensor-parallel", "2", "--reduction-slices", "2", "--accelerator", "8xh100",
                             "--kv-memory-mib", "8", "--json"});
  EXPECT_EQ(r.exit_code, 2) << r.err;  // 96 inputs of ffn_down
  EXPECT_NE(r.err.find("its 96 inputs"), std::string::npos) << r.err;
  const std::string wide = TempDir() + "/wide.gguf";
  ASSERT_TRUE(fakes::WriteTinyGguf({.ffn_dim = 128}, wide).ok());
  const Result plan = RunBaton({"plan", wide, "--tensor-parallel", "2", "--accelerator", "8xh100", "--kv-memory-mib", "8",
                                "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  const Json json = Json::parse(plan.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << plan.out;
  EXPECT_EQ(json["gpu"]["reduction_slices"], 2);
  EXPECT_EQ(json["gpu"]["kv_pool_bytes"], 4 << 20);
  EXPECT_EQ(json["accelerator"]["count"], 2);
  EXPECT_TRUE(json["worker"].is_null());
  EXPECT_NE(json["remarks"][0].get<std::string>().find("hold 4 like it"), std::string::npos) << json["remarks"];
  const Result fp8 = RunBaton({"plan", wide, "--tensor-parallel", "2", "--weights-dtype", "fp8", "--json"});
  EXPECT_NE(Json::parse(fp8.out, nullptr, false)["gpu"]["split_bytes"], json["gpu"]["split_bytes"]) << "from Q8_0 to E4M3";
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--tensor-parallel", "4"}, {"--tensor-parallel", "3"}, {"--tensor-parallel", "64"},
        {"--tensor-parallel", "2", "--count", "1"}, {"--tensor-parallel", "2", "--kv-dtype", "fp8"},
        {"--reduction-slices", "2", "--weights-dtype", "int8"}}) {
    std::vector<std::string> args = {"plan", wide};
    args.insert(args.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(RunBaton(args).exit_code, 2) << wrong.back();
  }
}

}  // namespace
}  // namespace baton::cli
