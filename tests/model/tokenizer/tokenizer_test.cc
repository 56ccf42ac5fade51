#include "model/tokenizer/tokenizer.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace baton::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kNormal = 1;
constexpr int kUnknown = 2;
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kByte = 6;

// 0 <eos>, 1 <|im_end|>, 2 TOOL (user-defined), 3.. letters and merges; Ġ is the space's letter.
TokenizerData ByteLevel() {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  data.tokens = {"<eos>",
                 "<|im_end|>",
                 "TOOL",
                 "a",
                 "b",
                 "\xC4\xA0",
                 "ab",
                 "\xC4\xA0"
                 "ab",
                 "aa",
                 "\xC3\xA3",
                 "\xC4\xA3",
                 "\xC4\xA2"};
  data.token_types = {kControl, kControl, kUserDefined, kNormal, kNormal, kNormal,
                      kNormal,  kNormal,  kNormal,      kNormal, kNormal, kNormal};
  data.merges = {"a b", "\xC4\xA0 ab", "a a"};
  data.eos_id = 0;
  data.bos_id = 0;
  return data;
}

// 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, 259...
TokenizerData SentencePiece() {
  TokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.token_types = {kUnknown, kControl, kControl};
  const char* hex = "0123456789ABCDEF";
  for (int i = 0; i < 256; ++i) {
    data.tokens.push_back(std::string("<0x") + hex[i / 16] + hex[i % 16] + ">");
    data.token_types.push_back(kByte);
  }
  for (const char* piece : {"\xE2\x96\x81", "h", "i", "hi", "\xE2\x96\x81hi", "ih"}) {
    data.tokens.push_back(piece);
    data.token_types.push_back(kNormal);
  }
  data.tokens.push_back("  ");
  data.token_types.push_back(kUserDefined);
  data.scores.assign(data.tokens.size(), 0.f);
  data.scores[262] = -2;  // hi
  data.scores[263] = -3;  // _hi
  data.scores[264] = -1;  // ih: better than hi
  data.bos_id = 1;
  data.eos_id = 2;
  data.unk_id = 0;
  data.add_bos = true;
  return data;
}

std::unique_ptr<const Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

void ExpectRefused(TokenizerData data, absl::StatusCode code, const std::string& message) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(message));
}

TEST(TokenizerTest, MergesByRank) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(*tokenizer->Encode("ab ab"), ElementsAre(6, 7));
  EXPECT_THAT(*tokenizer->Encode("aab"), ElementsAre(3, 6));  // "a b" comes before "a a"
  EXPECT_THAT(*tokenizer->Encode("aaa"), ElementsAre(8, 3));  // equal ranks from the left
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre());
}

// And their neighbours meet, as in the reference.
TEST(TokenizerTest, BytesWithoutATokenAreLeftOut) {
  EXPECT_THAT(*Make(ByteLevel())->Encode("azb"), ElementsAre(6));
  EXPECT_THAT(*Make(ByteLevel())->Encode("zz"), ElementsAre());
}

TEST(TokenizerTest, SpecialTokensInText) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(*tokenizer->Encode("a<|im_end|>TOOLb<eos>"), ElementsAre(3, 1, 2, 4, 0));
  EXPECT_THAT(*tokenizer->Encode("aTOOL<eos>b", {.parse_special = false}), ElementsAre(3, 2, 4));
}

TEST(TokenizerTest, EndOfGeneration) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(0, 1));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(1));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(2));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(-1));
}

TEST(TokenizerTest, AddsBosAndEosWhereAskedFor) {
  TokenizerData data = ByteLevel();
  data.add_bos = data.add_eos = true;
  data.bos_id = 1;
  const auto tokenizer = Make(data);
  EXPECT_THAT(*tokenizer->Encode("a"), ElementsAre(1, 3, 0));
  EXPECT_THAT(*tokenizer->Encode("a", {.add_special = false}), ElementsAre(3));
}

// A quadratic merge would take hours here.
TEST(TokenizerTest, LongRunIsNotQuadratic) {
  const std::string run(1 << 20, 'a');
  const auto byte_level = Make(ByteLevel());
  EXPECT_EQ(byte_level->Encode(run)->size(), run.size() / 2);
  const auto sentence_piece = Make(SentencePiece());
  EXPECT_EQ(sentence_piece->Encode(std::string(1 << 20, 'h'), {.add_special = false})->size(), (1u << 20) + 1);
  EXPECT_EQ(byte_level->Encode(std::string(1 << 20, ' '))->size(), 1u << 20);
}

TEST(TokenizerTest, InvalidUtf8NamesTheOffset) {
  absl::StatusOr<std::vector<int32_t>> ids = Make(ByteLevel())->Encode("aab\xC3");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("offset 3"));
}

TEST(TokenizerTest, TooLongIsRefusedBeforeItIsRead) {
  absl::StatusOr<std::vector<int32_t>> ids = Make(ByteLevel())->Encode(absl::string_view("a", (size_t{1} << 31) + 1));
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("2147483649"));
}

TEST(TokenizerTest, IdsOutsideTheVocabulary) {
  const auto tokenizer = Make(ByteLevel());
  for (const int32_t id : {-1, 12, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->TokenBytes(id).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3, id}).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->TokenText(id), "");
  }
}

TEST(TokenizerTest, SentencePieceMergesByScore) {
  const auto tokenizer = Make(SentencePiece());
  EXPECT_THAT(*tokenizer->Encode("hi"), ElementsAre(1, 263));
  EXPECT_THAT(*tokenizer->Encode("hih"), ElementsAre(1, 259, 260, 264));  // "ih" before "hi"
  EXPECT_THAT(*tokenizer->Encode("hi</s>hi"), ElementsAre(1, 263, 2, 263));
  EXPECT_EQ(*tokenizer->Decode(*tokenizer->Encode("hi hi"), true), "hi hi");
}

TEST(TokenizerTest, SentencePieceByteFallback) {
  const auto tokenizer = Make(SentencePiece());
  EXPECT_THAT(*tokenizer->Encode("\xC3\xA9", {.add_special = false}), ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{3 + 0xC3, 3 + 0xA9}), "\xC3\xA9");
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{3 + 0xC3}), "\xEF\xBF\xBD");
}

TEST(TokenizerTest, SentencePieceUserDefinedRunsOfSpaces) {
  TokenizerData data = SentencePiece();
  data.add_space_prefix = false;
  const auto tokenizer = Make(data);
  EXPECT_THAT(*tokenizer->Encode("  hi", {.add_special = false}), ElementsAre(265, 262));
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{265, 262}), "  hi");
}

TEST(TokenizerTest, CodePointWithoutByteTokensIsUnknown) {
  TokenizerData data = SentencePiece();
  for (int32_t& type : data.token_types) {
    if (type == kByte) type = kNormal;
  }
  EXPECT_THAT(*Make(data)->Encode("\xC3\xA9", {.add_special = false}), ElementsAre(259, 0));
}

TEST(TokenizerTest, BadVocabulariesAreRefused) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  TokenizerData data = ByteLevel();
  data.model = "t5";
  ExpectRefused(data, absl::StatusCode::kUnimplemented, "gpt2");
  data = ByteLevel();
  data.pre = "nobody";
  ExpectRefused(data, absl::StatusCode::kUnimplemented, "smollm");
  data = ByteLevel();
  data.tokens.clear();
  ExpectRefused(data, invalid, "no tokens");
  data = ByteLevel();
  data.token_types.pop_back();
  ExpectRefused(data, invalid, "token types");
  data = ByteLevel();
  data.eos_id = 12;
  ExpectRefused(data, invalid, "eos id 12");
  data = ByteLevel();
  data.merges.push_back("ab");
  ExpectRefused(data, invalid, "not two tokens");
  data = ByteLevel();
  data.merges.push_back("ab b");
  ExpectRefused(data, invalid, "needs a token");
  data = ByteLevel();
  data.bos_id = -1;
  data.add_bos = true;
  ExpectRefused(data, invalid, "bos");
  data = SentencePiece();
  data.scores.pop_back();
  ExpectRefused(data, invalid, "scores");
  data = SentencePiece();
  data.scores[0] = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(data, invalid, "not a number");
}

TEST(DetokenizerTest, NeverHalfACodePoint) {
  const auto tokenizer = Make(SentencePiece());
  Detokenizer stream(tokenizer.get());
  std::string out;
  for (const int byte : {0xF0, 0x9F, 0x98}) {
    ASSERT_TRUE(stream.Append(3 + byte, &out).ok());
    EXPECT_EQ(out, "");
  }
  ASSERT_TRUE(stream.Append(3 + 0x80, &out).ok());
  EXPECT_EQ(out, "\xF0\x9F\x98\x80");
  ASSERT_TRUE(stream.Append(3 + 0xE4, &out).ok());
  stream.Flush(&out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x80\xEF\xBF\xBD");
}

TEST(DetokenizerTest, SpecialTokens) {
  const auto tokenizer = Make(SentencePiece());
  Detokenizer skips(tokenizer.get());
  Detokenizer shows(tokenizer.get(), {.skip_special = false});
  std::string skipped;
  std::string shown;
  for (const int id : {260, 2, 259, 261}) {
    ASSERT_TRUE(skips.Append(id, &skipped).ok());
    ASSERT_TRUE(shows.Append(id, &shown).ok());
  }
  EXPECT_EQ(skipped, "h i");
  EXPECT_EQ(shown, "h</s> i");
}

std::vector<std::string> Pieces(const char* name, absl::string_view text) {
  auto pre_tokenizer = PreTokenizer::Create(name);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  auto pieces = (*pre_tokenizer)->Split(text);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  return std::vector<std::string>(pieces->begin(), pieces->end());
}

// What Hugging Face's pre-tokenizers make of the same text.
TEST(PreTokenizerTest, Schemes) {
  const char* text = "I'LL don't 12345  x\n\n y!?";
  EXPECT_THAT(Pieces("gpt-2", text),
              ElementsAre("I", "'", "LL", " don", "'t", " 12345", " ", " x", "\n\n", " y", "!?"));
  EXPECT_THAT(Pieces("smollm", text),
              ElementsAre("I", "'", "LL", " don", "'t", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", " y", "!?"));
  EXPECT_THAT(Pieces("llama-bpe", text),
              ElementsAre("I", "'LL", " don", "'t", " ", "123", "45", " ", " x", "\n\n", " y", "!?"));
  EXPECT_THAT(Pieces("qwen2", text),
              ElementsAre("I", "'LL", " don", "'t", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", " y", "!?"));
}

TEST(PreTokenizerTest, EveryKnownOneKeepsAllText) {
  const std::string text = "a\xC3\xA9 \xE4\xB8\x96 12 \t\r\n\r\n'S --> \xF0\x9F\x98\x80\xE2\x80\x8D x  ";
  for (const char* name :
       {"gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2", "stablelm2", "tekken", "gpt-4o", "default"}) {
    std::string joined;
    for (const std::string& piece : Pieces(name, text)) joined += piece;
    EXPECT_EQ(joined, text) << name;
  }
}

// PCRE2 calls it white space, Unicode (and the reference) no longer does.
TEST(PreTokenizerTest, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_THAT(Pieces("gpt-2",
                     "a\xE1\xA0\x8E"
                     "b"),
              ElementsAre("a", "\xE1\xA0\x8E", "b"));
  EXPECT_THAT(Pieces("gpt-2",
                     " \xE1\xA0\x8E"
                     "b"),
              ElementsAre(" \xE1\xA0\x8E", "b"));
}

}  // namespace
}  // namespace baton::model
