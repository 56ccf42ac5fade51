#include "model/tokenizer/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::model {
namespace {

std::string Stream(const std::string& bytes) {
  Utf8Stream stream;
  std::string out;
  for (const char c : bytes) stream.Append(absl::string_view(&c, 1), &out);
  stream.Flush(&out);
  return out;
}

constexpr char kBad[] = "\xEF\xBF\xBD";

TEST(Utf8Test, FirstInvalid) {
  EXPECT_FALSE(FirstInvalidUtf8("").has_value());
  EXPECT_FALSE(FirstInvalidUtf8("a\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF").has_value());
  EXPECT_EQ(FirstInvalidUtf8("ab\xFF"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("ab\xC3"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("\xC3\xA9\xE4\xB8"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("\xC0\x80"), 0u);          // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xE0\x80\x80"), 0u);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("x\xED\xA0\x80"), 1u);     // surrogate
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(FirstInvalidUtf8("\xF5\x80\x80\x80"), 0u);
  EXPECT_EQ(FirstInvalidUtf8(absl::string_view("a\0b\x80", 4)), 3u);
}

TEST(Utf8Test, StreamHoldsUntilComplete) {
  Utf8Stream stream;
  std::string out;
  stream.Append("\xF0\x9F", &out);
  EXPECT_EQ(out, "");
  stream.Append("\x98", &out);
  EXPECT_EQ(out, "");
  stream.Append("\x80!", &out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x80!");
}

TEST(Utf8Test, StreamReplacesAsSoonAsKnown) {
  Utf8Stream stream;
  std::string out;
  stream.Append("\xE4", &out);
  EXPECT_EQ(out, "");
  stream.Append("a", &out);
  EXPECT_EQ(out, std::string(kBad) + "a");
  out.clear();
  stream.Append("\x80", &out);
  EXPECT_EQ(out, kBad);
}

// One replacement for each maximal part, as Python and Rust do.
TEST(Utf8Test, StreamReplacesMaximalParts) {
  EXPECT_EQ(Stream("\xF0\x9F\x98x"), std::string(kBad) + "x");
  EXPECT_EQ(Stream("\xF0\x9F\x98"), kBad);
  EXPECT_EQ(Stream("\xC0\x80"), std::string(kBad) + kBad);
  EXPECT_EQ(Stream("\xED\xA0\x80"), std::string(kBad) + kBad + kBad);
  EXPECT_EQ(Stream("\xE4\xE4\xB8\x96"), std::string(kBad) + "\xE4\xB8\x96");
  EXPECT_EQ(Stream("\xFF\xFE"), std::string(kBad) + kBad);
}

}  // namespace
}  // namespace baton::model
