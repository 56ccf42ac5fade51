// `tokenize`, `detokenize` and `tokenizer export`. Runs the real binary. That Hugging Face's libraries read the folder
// and give equal ids is checked by tests/reference/tokenizer_export_check.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/tokenizer_export.h"
#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

std::string Model() {
  const std::string path = TempDir() + "/tokenizer.gguf";
  EXPECT_TRUE(fakes::WriteTinyGguf({}, path).ok());
  return path;
}

TEST(TokenizeTest, ThereAndBack) {
  const std::string model = Model();
  const Result ids = RunBaton({"tokenize", "--local", "--model", model, "--json", "H\xC3\xA9llo <|im_end|>"});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  const Json json = Json::parse(ids.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ids.out;
  EXPECT_EQ(json["count"], json["token_ids"].size());
  EXPECT_EQ(json["token_ids"].back(), 258);  // a special token, as a rendered template has it
  const Result text = RunBaton({"detokenize", "--local", "--model", model}, json["token_ids"].dump());
  EXPECT_NE(text.out.find("H\xC3\xA9llo"), std::string::npos) << text.out << text.err;
}

TEST(TokenizeTest, WrongUsage) {
  const std::string model = Model();
  const std::vector<std::vector<std::string>> wrong = {{"tokenize", "--local", "x"},
                                                       {"tokenize", "--local", "--model", model, "\xff"},
                                                       {"detokenize", "--local", "--model", model, "1,two"},
                                                       {"detokenize", "--local", "--model", model, "999999"},
                                                       {"detokenize", "--local", "--model", model, "99999999999"},
                                                       {"tokenizer"},
                                                       {"tokenizer", "export"},
                                                       {"tokenizer", "export", TempDir() + "/x"}};
  for (const auto& args : wrong) {
    const Result r = RunBaton(args);
    EXPECT_EQ(r.exit_code, 2) << args.back() << r.out << r.err;
    EXPECT_NE(r.err.find("next:"), std::string::npos) << r.err;
  }
}

TEST(TokenizerExportTest, WritesTheFolderOnce) {
  const std::string model = Model(), dir = TempDir() + "/exported/folder";
  std::filesystem::remove_all(dir);
  const std::vector<std::string> args = {"tokenizer", "export", dir, "--model", model};
  EXPECT_EQ(RunBaton(args).exit_code, 0);
  const Json json = Json::parse(ReadFileOrEmpty(dir + "/tokenizer.json"), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["model"]["vocab"].size(), 256u + 3 + 21);
  EXPECT_EQ(json["model"]["merges"].size(), 21u);
  ASSERT_EQ(json["added_tokens"].size(), 3u);
  EXPECT_EQ(json["added_tokens"][2]["content"], "<|im_end|>");
  EXPECT_EQ(json["added_tokens"][2]["id"], 258);
  const Json config = Json::parse(ReadFileOrEmpty(dir + "/tokenizer_config.json"), nullptr, false);
  EXPECT_EQ(config["eos_token"], "<|im_end|>");
  EXPECT_EQ(config["model_max_length"], 512);
  EXPECT_EQ(config["chat_template"], ReadFileOrEmpty(dir + "/chat_template.jinja"));
  const Result again = RunBaton(args);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.err;
  std::vector<std::string> force = args;
  force.push_back("--force");
  EXPECT_EQ(RunBaton(force).exit_code, 0);
  EXPECT_EQ(RunBaton({"tokenizer", "export", dir, "--model", "/no/such.gguf"}).exit_code, 1);
}

// Scores become ranks: a piece of better score is merged first, whatever the order of ids.
TEST(TokenizerExportTest, SentencePieceScoresBecomeRankedMerges) {
  model::TokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "a", "b", "ab", "bb", "abb", "<0x41>", "x y"};
  data.token_types = {2, 3, 1, 1, 1, 1, 1, 6, 4};
  data.scores = {0, 0, -5, -6, -2, -1, -3, 0, 0};
  data.unk_id = 0;
  data.bos_id = 1;
  data.add_bos = true;
  data.add_space_prefix = false;
  const absl::StatusOr<TokenizerFolder> folder = ExportTokenizer(data, "", 0);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const Json json = Json::parse(folder->tokenizer_json, nullptr, false);
  EXPECT_EQ(json["model"]["merges"], Json::parse(R"([["b","b"],["a","b"],["a","bb"],["ab","b"]])"));
  EXPECT_EQ(json["model"]["byte_fallback"], true);
  EXPECT_EQ(json["model"]["unk_token"], "<unk>");
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  EXPECT_EQ(json["added_tokens"].size(), 3u);
  EXPECT_EQ(json["added_tokens"][2]["special"], false);
  EXPECT_EQ(folder->chat_template, "");
}

}  // namespace
}  // namespace baton::cli
