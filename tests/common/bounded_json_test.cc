#include "common/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(BoundedJsonTest, KeepsTheOrderOfMembers) {
  const auto json = ParseBoundedJson(R"({"z":1,"a":[{}, "b:{,[\"", null]})");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"z":1,"a":[{},"b:{,[\"",null]})");
}

TEST(BoundedJsonTest, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "]", "{\"a\":1,}", "{'a':1}", "NaN", "[Infinity]", "1e999", "\"\\ud800\"", "\"\xff\"", "[1] 2",
                           "\"\xc0\xaf\"", "\"\\", "tru", "\"a\nb\""}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(ParseBoundedJson(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(ParseBoundedJson("[1, x]").status().message()), HasSubstr("at byte 5"));
}

TEST(BoundedJsonTest, BombsEndBeforeAnythingIsBuilt) {
  EXPECT_THAT(std::string(ParseBoundedJson(std::string(4 << 20, '[')).status().message()), HasSubstr("deeper than 64"));
  EXPECT_THAT(std::string(ParseBoundedJson(Repeat("{\"a\":", 100000)).status().message()), HasSubstr("deeper"));
  EXPECT_TRUE(ParseBoundedJson(Repeat("[", 64) + Repeat("]", 64)).ok());
  EXPECT_FALSE(ParseBoundedJson(Repeat("[", 65) + Repeat("]", 65)).ok());
  EXPECT_THAT(std::string(ParseBoundedJson("[" + Repeat("[],", 1000000) + "[]]").status().message()),
              HasSubstr("more than 1000000 values"));
  std::string wide = "{";
  for (int i = 0; i <= 1100; ++i) absl::StrAppend(&wide, i > 0 ? "," : "", "\"", i, "\":0");
  EXPECT_THAT(std::string(ParseBoundedJson(wide + "}").status().message()), HasSubstr("more than 1100 members"));
  EXPECT_FALSE(ParseBoundedJson("[" + Repeat("{\"a\":1},", 200001) + "0]").ok());
}

}  // namespace
}  // namespace baton
