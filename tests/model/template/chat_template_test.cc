#include "model/template/chat_template.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::model {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

absl::StatusOr<std::string> Render(absl::string_view source, const ChatTemplateInput& input = {},
                                   const ChatTemplateLimits& limits = {}) {
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source, limits);
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(input);
}

void ExpectExhausted(absl::string_view source) {
  absl::StatusOr<std::string> text = Render(source);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted) << source.substr(0, 200) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("line "));
}

void ExpectInvalid(absl::string_view source, const std::string& message) {
  absl::StatusOr<std::string> text = Render(source);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 200) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(message));
}

std::string Repeat(absl::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, text);
  return out;
}

TEST(ChatTemplateTest, ShowsVariables) {
  ChatTemplateInput input;
  input.messages = ordered_json::array({{{"role", "user"}, {"content", "hi"}}});
  input.bos_token = "<s>";
  input.extra = ordered_json{{"x", 1}, {"messages", "not these"}};
  EXPECT_EQ(*Render("{{ bos_token }}{{ messages[0].content }}{{ x }}{{ add_generation_prompt }}", input), "<s>hi1True");
}

TEST(ChatTemplateTest, KeyOrderIsKept) {
  ChatTemplateInput input;
  input.tools = ordered_json::array({ordered_json::parse(R"({"z":1,"a":{"y":2,"b":3}})")});
  EXPECT_EQ(*Render("{{ tools[0] | tojson }}", input), R"({"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST(ChatTemplateTest, ClockIsTheCallers) {
  EXPECT_EQ(*Render("{{ strftime_now is defined }}"), "False");
  ChatTemplateInput input;
  input.now = absl::FromUnixSeconds(0);
  EXPECT_EQ(*Render("{{ strftime_now('%Y') }}|{{ strftime_now('') }}", input), "1970|");
}

TEST(ChatTemplateTest, RefusalCarriesTheTemplatesMessage) {
  ExpectInvalid("\n\n{{ raise_exception('roles must alternate') }}",
                "line 3: the template refuses these messages: roles must");
}

TEST(ChatTemplateTest, SyntaxErrorsNameTheLine) {
  ExpectInvalid("a\n{% if x %}", "line 2");
  ExpectInvalid("{{ 1 +\n\n }}", "line 3");
  ExpectInvalid("{{ 'open }}", "string is not closed");
  ExpectInvalid("{{ x", "not closed");
  ExpectInvalid("{# x", "not closed");
  ExpectInvalid("{% raw %}", "raw");
  ExpectInvalid("{% endfor %}", "endfor");
  ExpectInvalid("{% for x in %}{% endfor %}", "expression");
  ExpectInvalid("{% for x in y %}{% endif %}", "endif");
  ExpectInvalid("{% break %}", "outside of a loop");
  ExpectInvalid("{% include 'x' %}", "include");
  ExpectInvalid("{% for x in y recursive %}{% endfor %}", "recursive");
  ExpectInvalid("{{ x ) }}", "unexpected");
  ExpectInvalid("{{ x ; }}", "unexpected character");
  ExpectInvalid("{{ '\\u12' }}", "hexadecimal");
  ExpectInvalid("{{ f(a=1, a=2) }}", "repeated");
  ExpectInvalid("{{ f(a=1, 2) }}", "arguments");
  ExpectInvalid("{% set true = 1 %}", "assign");
  ExpectInvalid("{% macro f(a=1, b) %}{% endmacro %}", "default");
  ExpectInvalid("\xFF", "UTF-8");
}

TEST(ChatTemplateTest, ErrorsWhileRendering) {
  ExpectInvalid("{{ nothing.x }}", "'nothing' is undefined");
  ExpectInvalid("{{ nothing() }}", "'nothing' is undefined");
  ExpectInvalid("{{ messages.nothing() }}", "nothing");
  ExpectInvalid("\n{{ 1 / 0 }}", "line 2: division by zero");
  ExpectInvalid("{{ 'a' + 1 }}", "concatenate");
  ExpectInvalid("{{ 1 < 'a' }}", "not supported between");
  ExpectInvalid("{% for x in 5 %}{% endfor %}", "not iterable");
  ExpectInvalid("{% for a, b in [1] %}{% endfor %}", "not iterable");
  ExpectInvalid("{% for a, b in [[1]] %}{% endfor %}", "unpack");
  ExpectInvalid("{{ 'x' | nofilter }}", "no filter named 'nofilter'");
  ExpectInvalid("{{ 'x' is notest }}", "no test named 'notest'");
  ExpectInvalid("{% set x.y = 1 %}", "non-namespace");
  ExpectInvalid("{{ {[]: 1} }}", "unhashable");
  ExpectInvalid("{{ [1].append(2) }}", "unsafe");
  ExpectInvalid("{% macro f() %}{% endmacro %}{{ f(1) }}", "not more than");
  ExpectInvalid("{% macro f() %}{% endmacro %}{{ f(x=1) }}", "keyword");
  ExpectInvalid("{{ 10 ** 30 * 10 ** 30 }}", "128 bits");
  ExpectInvalid("{{ namespace(__class__=1) }}", "start with _");
  ExpectInvalid("{{ range }}", "has no text");
  ExpectInvalid("{{ missing | tojson }}", "not JSON serializable");
}

TEST(ChatTemplateTest, NothingOfTheHostIsReachable) {
  EXPECT_EQ(
      *Render("{{ ''.__class__ is defined }}{{ [].__class__ is defined }}{{ messages.__init__ is defined }}"
              "{{ range.__globals__ is defined }}{{ self is defined }}{{ open is defined }}{{ config is defined }}"),
      "FalseFalseFalseFalseFalseFalseFalse");
}

TEST(ChatTemplateBombTest, Loops) {
  ExpectExhausted("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
  ExpectExhausted("{% for a in range(2000) %}{% for b in range(2000) %}{{ loop.changed(a) }}{% endfor %}{% endfor %}");
  ExpectExhausted("{{ range(1000000000000) | list }}");
  ExpectExhausted("{{ range(0, 10 ** 18, 1) | length }}");
}

TEST(ChatTemplateBombTest, Sizes) {
  ExpectExhausted("{{ 'a' * 10 ** 9 }}");
  ExpectExhausted("{{ ('a' * 10 ** 9) | length }}");
  ExpectExhausted("{{ 'a' * 10 ** 36 }}");
  ExpectExhausted("{{ [1] * 10 ** 9 }}");
  ExpectExhausted("{{ [1] * 10 ** 36 }}");
  ExpectExhausted("{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
  ExpectExhausted("{% set ns = namespace(s=[0]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
  ExpectExhausted("{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}");
  ExpectExhausted("{% for i in range(100000) %}0123456789abcdef{% endfor %}");
  ExpectExhausted("{% set x %}{% for i in range(100000) %}0123456789abcdef{% endfor %}{% endset %}");
  ExpectExhausted("{% for i in range(100000) %}{% set x = 'a' * 1000000 %}{% endfor %}");
  ExpectExhausted("{{ ('a' * 100000) | replace('', 'b' * 1000) }}");
  ExpectExhausted("{{ (['a' * 1000] * 10000) | join('b' * 1000) }}");
  ExpectExhausted("{{ 'x\n' | indent(10 ** 9, true) }}");
  ExpectExhausted("{{ [[1]] | tojson(indent=10 ** 9) }}");
  ExpectExhausted("{{ [1] | batch(10 ** 15, 0) }}");
  ExpectExhausted("{{ '1'.zfill(10 ** 15) }}");
}

TEST(ChatTemplateBombTest, SharedDataThatIsExponentialWhenWalked) {
  const std::string grow =
      "{% set ns = namespace(a=['x'], b=['x']) %}"
      "{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  ExpectExhausted(grow + "{{ ns.a == ns.b }}");
  ExpectExhausted(grow + "{{ ns.a }}");
  ExpectExhausted(grow + "{{ ns.a | tojson }}");
  ExpectExhausted(grow + "{{ ns.a < ns.b }}");
}

TEST(ChatTemplateBombTest, Recursion) {
  ExpectExhausted("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
  ExpectExhausted("{% macro f(x) %}{% if x %}{{ f(x) ~ f(x) }}{% endif %}{% endmacro %}{{ f(1) }}");
  ExpectExhausted(
      "{% macro g(n) %}{{ f(n) | upper }}{% endmacro %}{% macro f(x) %}{{ (((g(x)))) }}{% endmacro %}{{ f(1) }}");
  ExpectExhausted("{% macro f(a=f()) %}{% endmacro %}{{ f() }}");
  ExpectExhausted("{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}");
  ExpectExhausted("{% set ns = namespace(x={}) %}{% for i in range(10000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}");
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me[0].me[0].me | length }}"), "1");
}

TEST(ChatTemplateBombTest, MapOfMapIsBounded) {
  ExpectExhausted("{{ 'a' | map(" + Repeat("'map',", 20000) + "'upper') | list }}");
}

TEST(ChatTemplateBombTest, DeepSource) {
  ExpectInvalid("{{ " + Repeat("(", 5000) + "1" + Repeat(")", 5000) + " }}", "nested deeper than 64");
  ExpectInvalid("{{ " + Repeat("[", 5000) + Repeat("]", 5000) + " }}", "nested deeper");
  ExpectInvalid("{{ " + Repeat("not ", 5000) + "1 }}", "nested deeper");
  ExpectInvalid("{{ " + Repeat("-", 5000) + "1 }}", "nested deeper");
  ExpectInvalid("{{ " + Repeat("f(", 5000) + "1" + Repeat(")", 5000) + " }}", "nested deeper");
  ExpectInvalid("{{ x" + Repeat(".y", 5000) + " }}", "too deep");
  ExpectInvalid("{{ x" + Repeat("|e", 5000) + " }}", "too deep");
  ExpectInvalid("{{ x" + Repeat("()", 5000) + " }}", "too deep");
  ExpectInvalid("{{ 1" + Repeat(" if 1", 5000) + " }}", "too deep");
  ExpectInvalid(Repeat("{% if x %}", 5000) + Repeat("{% endif %}", 5000), "nested deeper");
  ExpectInvalid("{% set " + Repeat("(", 5000) + "x" + Repeat(")", 5000) + " = 1 %}", "nested deeper");
  // Long but not deep.
  EXPECT_EQ(*Render("{{ 0" + Repeat(" + 1", 5000) + " }}"), "5000");
  EXPECT_EQ(Render("{{ ''" + Repeat(" ~ 'a'", 5000) + " }}")->size(), 5000u);
}

TEST(ChatTemplateBombTest, SourceSize) { ExpectInvalid(std::string((256 << 10) + 1, ' '), "at most 262144"); }

TEST(ChatTemplateTest, DeepMessagesAreRefused) {
  ChatTemplateInput input;
  ordered_json deep = 1;
  for (int i = 0; i < 200; ++i) deep = ordered_json::array({deep});
  input.messages = ordered_json::array({{{"content", deep}}});
  EXPECT_EQ(Render("x", input).status().code(), absl::StatusCode::kInvalidArgument);
  input.messages = "no array";
  EXPECT_EQ(Render("x", input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, TextOfMessagesMustBeUtf8) {
  ChatTemplateInput input;
  input.messages = ordered_json::array({{{"content", "ok\xC3("}}});
  absl::StatusOr<std::string> text = Render("x", input);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("offset 2"));
}

TEST(ChatTemplateTest, MacroDefinedInALoopKeepsItsIteration) {
  EXPECT_EQ(*Render("{% set ns = namespace(f=none) %}{% for i in [1, 2, 3] %}{% macro f() %}{{ i }}{% endmacro %}"
                    "{% if i == 2 %}{% set ns.f = f %}{% endif %}{% endfor %}{{ ns.f() }}"),
            "2");
}

}  // namespace
}  // namespace baton::model
