#include "model/tokenizer/text_stream.h"

#include <random>
#include <string>

#include "gtest/gtest.h"
#include "model/tokenizer/tokenizer.h"

namespace baton::model {
namespace {

// Token i is the byte i; 256 is a special token, 257 "abc", 258 "cd".
std::unique_ptr<const Tokenizer> Bytes() {
  TokenizerData data;
  data.model = "llama";
  const char* hex = "0123456789ABCDEF";
  for (int i = 0; i < 256; ++i) {
    data.tokens.push_back(std::string("<0x") + hex[i / 16] + hex[i % 16] + ">");
    data.token_types.push_back(6);
  }
  data.tokens.insert(data.tokens.end(), {"</s>", "abc", "cd"});
  data.token_types.insert(data.token_types.end(), {3, 1, 1});
  data.scores.assign(data.tokens.size(), 0.f);
  return *Tokenizer::Create(std::move(data));
}

std::shared_ptr<const StopStrings> Stops(std::vector<std::string> strings) {
  auto stops = StopStrings::Create(std::move(strings));
  EXPECT_TRUE(stops.ok()) << stops.status();
  return *stops;
}

struct Result {
  std::string text;
  std::string stop;
  int64_t num_tokens;
};

Result Run(TextStream* stream, const std::vector<int32_t>& ids) {
  Result result;
  for (const int32_t id : ids) {
    auto output = stream->Append(id);
    EXPECT_TRUE(output.ok()) << output.status();
    result.text += output->text;
    if (output->stop_string.has_value()) {
      result.stop = *output->stop_string;
      break;
    }
  }
  const TextStream::Output rest = stream->Finish();
  result.text += rest.text;
  if (rest.stop_string.has_value()) result.stop = *rest.stop_string;
  result.num_tokens = stream->num_tokens();
  return result;
}

Result RunBytes(const std::string& text, std::vector<std::string> stops, TextStreamOptions options = {}) {
  static const auto* const tokenizer = Bytes().release();
  TextStream stream(tokenizer, Stops(std::move(stops)), options);
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return Run(&stream, ids);
}

TEST(TextStreamTest, WithoutStops) {
  const Result result = RunBytes("hello", {});
  EXPECT_EQ(result.text, "hello");
  EXPECT_EQ(result.num_tokens, 5);
}

TEST(TextStreamTest, StopSpansTokens) {
  const Result result = RunBytes("one STOP two", {"STOP"});
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(result.stop, "STOP");
  EXPECT_EQ(result.num_tokens, 8);  // the token that completes the match counts
}

TEST(TextStreamTest, IncludeStop) { EXPECT_EQ(RunBytes("ab##c", {"##"}, {.include_stop_str = true}).text, "ab##"); }

TEST(TextStreamTest, HoldsBackOnlyWhatMayBeginAStop) {
  const auto tokenizer = Bytes();
  TextStream stream(tokenizer.get(), Stops({"\nUser:", "##"}));
  EXPECT_EQ(stream.Append('a')->text, "a");
  EXPECT_EQ(stream.Append('\n')->text, "");
  EXPECT_EQ(stream.Append('U')->text, "");
  EXPECT_EQ(stream.Append('x')->text, "\nUx");
  EXPECT_EQ(stream.Append('#')->text, "");
  EXPECT_EQ(stream.Append('\n')->text, "#");
  EXPECT_EQ(stream.Finish().text, "\n");
  EXPECT_EQ(stream.Finish().text, "");
  EXPECT_EQ(stream.Append('a').status().code(), absl::StatusCode::kFailedPrecondition);
}

// After a partial match fails, a match may still begin inside it.
TEST(TextStreamTest, OverlappingPrefixes) {
  EXPECT_EQ(RunBytes("aaab!", {"aab"}).text, "a");
  EXPECT_EQ(RunBytes("abababc!", {"ababc"}).text, "ab");
}

TEST(TextStreamTest, FirstToCompleteWinsThenTheLongest) {
  Result result = RunBytes("xabcdef", {"abcdef", "cd"});
  EXPECT_EQ(result.text, "xab");
  EXPECT_EQ(result.stop, "cd");
  result = RunBytes("xabc", {"bc", "abc", "c"});
  EXPECT_EQ(result.text, "x");
  EXPECT_EQ(result.stop, "abc");
}

TEST(TextStreamTest, TextAfterTheStopInTheSameTokenIsDropped) {
  const auto tokenizer = Bytes();
  TextStream stream(tokenizer.get(), Stops({"b"}));
  const auto output = stream.Append(257);
  EXPECT_EQ(output->text, "a");
  EXPECT_EQ(*output->stop_string, "b");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Finish().text, "");
  EXPECT_EQ(stream.Append('x').status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TextStreamTest, MinTokens) {
  const Result result = RunBytes("a#b#c", {"#"}, {.min_tokens = 3});
  EXPECT_EQ(result.text, "a#b");
  EXPECT_EQ(result.num_tokens, 4);
}

TEST(TextStreamTest, MultiByteStopAndUnfinishedCodePoint) {
  EXPECT_EQ(RunBytes("a\xE4\xB8\x96"
                     "b",
                     {"\xE4\xB8\x96"})
                .text,
            "a");
  EXPECT_EQ(RunBytes("a\xE4\xB8", {"x"}).text, "a\xEF\xBF\xBD");
  EXPECT_EQ(RunBytes("a\xE4\xB8", {"\xEF\xBF\xBD"}).stop, "\xEF\xBF\xBD");
}

TEST(TextStreamTest, BadTokenChangesNothing) {
  const auto tokenizer = Bytes();
  TextStream stream(tokenizer.get(), Stops({"ab"}));
  EXPECT_EQ(stream.Append('a')->text, "");
  EXPECT_EQ(stream.Append(999).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.num_tokens(), 1);
  EXPECT_EQ(stream.Append('c')->text, "ac");
}

TEST(StopStringsTest, BadOnesAreRefused) {
  EXPECT_EQ(StopStrings::Create({"a", ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StopStrings::Create({"\xFF"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StopStrings::Create(std::vector<std::string>(257, "a")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StopStrings::Create({std::string(65537, 'a')}).status().code(), absl::StatusCode::kInvalidArgument);
}

// Against the plain definition: the earliest end, then the earliest start.
TEST(TextStreamTest, EqualsBruteForce) {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](int max) {
      std::string out;
      for (int n = 1 + static_cast<int>(rng() % max); n > 0; --n) out += static_cast<char>('a' + rng() % 3);
      return out;
    };
    const std::string text = word(20);
    std::vector<std::string> stops;
    for (int n = static_cast<int>(rng() % 4); n > 0; --n) stops.push_back(word(4));
    std::string expected = text;
    bool found = false;
    for (size_t end = 1; end <= text.size() && !found; ++end) {
      for (size_t begin = 0; begin < end && !found; ++begin) {
        for (const std::string& stop : stops) {
          if (text.substr(begin, end - begin) == stop && !found) {
            found = true;
            expected = text.substr(0, begin);
          }
        }
      }
    }
    const Result result = RunBytes(text, stops);
    ASSERT_EQ(result.text, expected) << text;
    ASSERT_EQ(!result.stop.empty(), found) << text;
  }
}

}  // namespace
}  // namespace baton::model
