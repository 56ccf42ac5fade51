#include "router/http/tool_calls.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace baton::router::http {
namespace {

// "content|name(arguments)..." of an output that arrives in pieces of `step` bytes; checks the order of deltas.
std::string Parse(ToolFormat format, const std::string& text, size_t step) {
  ToolCallParser parser(format, {"f", "g"});
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  const auto take = [&](const ToolPiece& piece) {
    content += piece.content;
    for (const ToolDelta& delta : piece.deltas) {
      if (!delta.name.empty()) {
        EXPECT_EQ(delta.index, static_cast<int>(calls.size()));
        EXPECT_EQ(delta.arguments, "");
        calls.emplace_back(delta.name, "");
      } else {
        EXPECT_EQ(delta.index + 1, static_cast<int>(calls.size()));
        calls.back().second += delta.arguments;
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += step) take(parser.Push(text.substr(at, step)));
  take(parser.Finish());
  EXPECT_EQ(parser.num_calls(), static_cast<int>(calls.size()));
  std::string out = content + "|";
  for (const auto& [name, arguments] : calls) out += name + "(" + arguments + ")";
  return out;
}

struct Case {
  const char* text;
  const char* found;
};

void Check(ToolFormat format, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    for (const size_t step : {1, 2, 3, 7, 1000}) {
      SCOPED_TRACE(absl::StrCat(c.text, " in steps of ", step));
      EXPECT_EQ(Parse(format, c.text, step), c.found);
    }
  }
}

TEST(ToolCallsTest, Hermes) {
  Check(ToolFormat::kHermes,
        {
            {"no call", "no call|"},
            {"a < b and <tool", "a < b and <tool|"},
            {" spaces stay \n", " spaces stay \n|"},
            {R"(<tool_call>
{"name": "f", "arguments": {"x": [1, {"y": "}\"]"}], "z": null}}
</tool_call>)",
             R"(|f({"x": [1, {"y": "}\"]"}], "z": null}))"},
            {"Let me "
             "see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
             "tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"a\":1}}</tool_call>",
             "Let me see.|f({})g({\"a\":1})"},
            {"<tool_call>{\"arguments\":{\"a\":1},\"name\":\"f\"}</tool_call> done", " done|f({\"a\":1})"},
            {"<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call>", "|unknown({})"},
            {"<tool_call>{\"name\":\"f\"}</tool_call>", "|f({})"},
            {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>", "|f({\"a\": 1})"},
            {"<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>|"},
            {"<tool_call>{\"x\":1}</tool_call>", "<tool_call>{\"x\":1}</tool_call>|"},
            {"<tool_call>{\"name\": \"f", "<tool_call>{\"name\": \"f|"},
            {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru", "|f({\"a\": tru)"},
            {"<tool_call>", "<tool_call>|"},
        });
}

TEST(ToolCallsTest, Llama3) {
  Check(ToolFormat::kLlama3,
        {
            {"no call {\"name\": \"f\"}", "no call {\"name\": \"f\"}|"},
            {R"({"name": "f", "parameters": {"x": "a;b"}})", R"(|f({"x": "a;b"}))"},
            {R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {"x": 1}})", R"(|f({"x": 1}))"},
            {R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": 2}})", R"(|f({})g({"b": 2}))"},
            {R"({"name": "Alice", "parameters": {"age": 3}})", R"({"name": "Alice", "parameters": {"age": 3}}|)"},
            {R"({"name": "f", "age": 3} is a person)", R"({"name": "f", "age": 3} is a person|)"},
            {R"(  {"answer": 42})", R"(  {"answer": 42}|)"},
            {"[1, 2]", "[1, 2]|"},
            {"<|python", "<|python|"},
        });
}

TEST(ToolCallsTest, WithoutAFormatEverythingIsText) {
  Check(ToolFormat::kNone, {{"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                             "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>|"}});
}

TEST(ToolCallsTest, ArgumentsLeaveAsTheyArrive) {
  ToolCallParser parser(ToolFormat::kHermes, {});
  EXPECT_TRUE(parser.Push("<tool_call>{\"name\": \"f\"").deltas.empty());
  EXPECT_EQ(parser.Push(", ").deltas.at(0).name, "f");
  EXPECT_EQ(parser.Push("\"arguments\": {\"a\": 1").deltas.at(0).arguments, "{\"a\": 1");
  EXPECT_EQ(parser.Push("23, ").deltas.at(0).arguments, "23, ");
}

TEST(ToolCallsTest, TheFormIsKnownByTheTemplate) {
  EXPECT_EQ(ToolFormatOf("{{ messages }}"), ToolFormat::kHermes) << "tools are told in words, in that form";
  EXPECT_EQ(ToolFormatOf("{% if tools %}<tool_call>{% endif %}"), ToolFormat::kHermes);
  EXPECT_EQ(ToolFormatOf("{% if tools %}{'name': ..., \"parameters\": ...}{% endif %}"), ToolFormat::kLlama3);
  EXPECT_EQ(ToolFormatOf("{% if tools %}?{% endif %}"), ToolFormat::kNone);
}

}  // namespace
}  // namespace baton::router::http
