// What each kind of constraint takes and refuses, byte by byte.
#include <string>
#include <vector>

#include "common/status.h"
#include "tests/constraint/constraint_test_util.h"

namespace baton::constraint {
namespace {

struct Case {
  const char* constraint;
  std::vector<std::string> yes, no;
};

TEST(RegexTest, TakesWhatMatchesTheWhole) {
  const Case cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"^a+$", {"a", "aaa"}, {"", "ba"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"(a|b)*c", {"c", "abbac"}, {"ab", "cc"}},
      {"(?:x?y){2}", {"yy", "xyy", "xyxy"}, {"y", "xxy", "yyy"}},
      {"(?P<n>[0-9]{2,3}?)", {"12", "123"}, {"1", "1234"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"[a-c_-]+", {"a-_c", "-"}, {"d", ""}},
      {"[]x]", {"]", "x"}, {"["}},
      {"[^a-y]", {"z", "\n", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"b", "\xc3", "\xff", "zz"}},
      {".", {"a", "\xe2\x82\xac"}, {"\n", "\xe2\x82", ""}},
      {R"(\d\w\s\D\W\S)", {"1_ a-!"}, {"a_ a-!", "1_ 1-!"}},
      {R"(\x41\u00e9\x{1F600}\.\\\n)", {"A\xc3\xa9\xf0\x9f\x98\x80.\\\n"}, {"A\xc3\xa9\xf0\x9f\x98\x80x\\\n"}},
      {"[\xc3\xa0-\xc3\xbf]", {"\xc3\xa9"}, {"a", "\xc4\x80"}},
      {"[\\x{7F}-\\x{10FFFF}]", {"\x7f", "\xc2\x80", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"},
       {"~", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80"}},
      {"(a*)*", {"", "aaaa"}, {"b"}},
      {"(a|a)*", {"", "aaaa"}, {"b"}},
      {"()", {""}, {"a"}},
  };
  for (const Case& c : cases) {
    for (const auto& text : c.yes) EXPECT_TRUE(Accepts(Regex(c.constraint), text)) << c.constraint << " on " << text;
    for (const auto& text : c.no) EXPECT_FALSE(Accepts(Regex(c.constraint), text)) << c.constraint << " on " << text;
  }
}

TEST(RegexTest, RefusesByNameWhatItDoesNotKnow) {
  for (const auto& [regex, what] : std::vector<std::pair<const char*, const char*>>{
           {"foo**", "nothing to repeat"}, {"*a", "nothing to repeat"}, {"a{", "without a number"}, {"(a", "not closed"},
           {"a)", "without a ("}, {"[a", "not closed"}, {"[b-a]", "no order"}, {"a{3,2}", "below the lower"},
           {"a{1,1000000}", "more than 1000"}, {"(?=a)", "not supported"}, {"(?i)a", "not supported"}, {"(?<=a)b", "not supported"},
           {R"(\bword)", "word boundaries"}, {R"((a)\1)", "back references"}, {R"(\p{L})", "not supported"}, {"a^b", "^ and $"},
           {"[[:alpha:]]", "POSIX"}, {"\\", "backslash"}, {R"(\x{110000})", "no code point"}, {R"([^\x00-\x{10FFFF}])", "nothing is in"}}) {
    EXPECT_NE(ErrorOf(Regex(regex)).find(what), std::string::npos) << regex << ": " << ErrorOf(Regex(regex));
  }
}

TEST(GbnfTest, TakesWhatItsRulesSay) {
  const Case cases[] = {
      {"root ::= \"a\" \"b\"", {"ab"}, {"", "a", "abc"}},
      {"# the answer\nroot ::= answer  # one\nanswer ::= \"yes\" | \"no\"\n", {"yes", "no"}, {"", "yesno", "maybe"}},
      // Alternatives on lines of their own, in groups and without.
      {"root ::=\n  \"x\"\n  | other\nother ::= (\n \"y\" |\n \"z\"\n)+", {"x", "y", "zyz"}, {"", "xy"}},
      {"root ::= item (\", \" item)*\nitem ::= [a-z]+ | [0-9]{2,3}", {"abc", "ab, 12, c", "123"}, {"1", "1234", "ab,c", ""}},
      {"root ::= \"(\" root? \")\"", {"()", "((()))"}, {"", "(", "())"}},
      {"root ::= [^\"\\x00-\\x1F]* \"\\\"\" \"\\n\"", {"ab\xc3\xa9\"\n", "\"\n"}, {"\"", "a\n\"\n", "a\""}},
      {"root ::= \"\\u00e9\" \"\\U0001F600\" [\\]\\-\\^] \"\xe2\x82\xac\"", {"\xc3\xa9\xf0\x9f\x98\x80]\xe2\x82\xac", "\xc3\xa9\xf0\x9f\x98\x80-\xe2\x82\xac"}, {"\xc3\xa9"}},
      {"root ::= .{2}", {"a\n", "\xe2\x82\xac."}, {"a", "abc"}},
      {"root ::= \"\" | \"a\"?", {"", "a"}, {"b"}},
      {"a-b_1 ::= \"q\"\nroot ::= a-b_1 a-b_1", {"qq"}, {"q"}},
  };
  for (const Case& c : cases) {
    for (const auto& text : c.yes) EXPECT_TRUE(Accepts(Gbnf(c.constraint), text)) << c.constraint << " on " << text;
    for (const auto& text : c.no) EXPECT_FALSE(Accepts(Gbnf(c.constraint), text)) << c.constraint << " on " << text;
  }
}

// llama.cpp's grammars/json.gbnf in short: it compiles, and takes what JSON is.
TEST(GbnfTest, TakesJson) {
  const v1::Constraint json = Gbnf(R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)");
  EXPECT_TRUE(Accepts(json, R"({"a": [1, -2.5e+3, "x\n\u00e9", {}], "b": null})"));
  for (const char* text : {"", "[]", "{\"a\":}", "{\"a\": 1,}", "{a: 1}"}) EXPECT_FALSE(Accepts(json, text)) << text;
}

TEST(GbnfTest, RefusesWithThePlace) {
  for (const auto& [grammar, what] : std::vector<std::pair<const char*, const char*>>{
           {"", "no rule is called root"}, {"x ::= \"a\"", "no rule is called root"}, {"root ::= x", "\"x\" is used and not defined"},
           {"start: \"a\"", "expected a rule (name ::= ...) at byte 0"}, {"root ::= \"a\nroot ::= \"b\"", "a text is not closed"},
           {"root ::= \"a", "a text is not closed"}, {"root ::= [a", "a class is not closed"}, {"root ::= (\"a\"", "a group is not closed"},
           {"root ::= \"a\")", "a ) without a ("}, {"root ::= *", "nothing to repeat"}, {"root ::= \"a\"**", "nothing to repeat"},
           {"root ::= \"a\"{1001}", "more than 1000"}, {"root ::= \"a\"{3,2}", "below the lower"}, {"root ::= [b-a]", "no order"},
           {"root ::= \"\\q\"", "\\q is not supported"}, {"root ::= []", "nothing is in"}, {"root ::= \"\\ud800\"", "no code point"},
           {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"}, {"root ::= root \"a\" | \"b\"", "refers to itself"},
           {"root ::= x\nx ::= \"a\"* root", "refers to itself"}, {"root ::= \"a\" root", "no text satisfies it"},
           {"root ::= \"a\"{", "without a number"}, {"root ::= \"\\", "a backslash at the end"}}) {
    EXPECT_NE(ErrorOf(Gbnf(grammar)).find(what), std::string::npos) << grammar << ": " << ErrorOf(Gbnf(grammar));
  }
}

TEST(EnclosedTest, TakesJsonBetweenTwoTexts) {
  v1::Constraint c;
  c.mutable_enclosed()->set_before("<a>\n");
  c.mutable_enclosed()->set_json_schema(R"({"anyOf":[{"type":"object","properties":{"n":{"const":"f"},"l":{"$ref":"#/anyOf/0/$defs/l"}},
      "required":["n"],"additionalProperties":false,"$defs":{"l":{"type":"array","items":{"$ref":"#/anyOf/0/$defs/l"}}}}]})");
  c.mutable_enclosed()->set_after("\n</a>");
  for (const char* text : {"<a>\n{\"n\":\"f\"}\n</a>", "<a>\n{\"n\": \"f\", \"l\": [[], [[]]]}\n</a>"}) {
    EXPECT_TRUE(Accepts(c, text)) << text;
  }
  for (const char* text : {"", "<a>\n", "{\"n\":\"f\"}", "<a>\n{\"n\":\"f\"}", "<a>\n{\"n\":\"g\"}\n</a>", "<a>\n{\"n\":\"f\"}\n</a>x",
                           "<a>\n{\"n\":\"f\",\"l\":[1]}\n</a>"}) {
    EXPECT_FALSE(Accepts(c, text)) << text;
  }
  c.mutable_enclosed()->set_before(std::string(kMaxEnclosingBytes + 1, 'x'));
  EXPECT_NE(ErrorOf(c).find("at most 256"), std::string::npos) << ErrorOf(c);
  v1::Constraint empty;
  empty.mutable_enclosed()->set_after("\xff");
  EXPECT_NE(ErrorOf(empty), "");
}

TEST(ChoiceTest, TakesOneOfThem) {
  const v1::Constraint c = Choice({"yes", "yes please", "no", "\xe2\x82\xac"});
  for (const char* text : {"yes", "yes please", "no", "\xe2\x82\xac"}) EXPECT_TRUE(Accepts(c, text)) << text;
  for (const char* text : {"", "ye", "yes ", "nono", "\xe2\x82"}) EXPECT_FALSE(Accepts(c, text)) << text;
  EXPECT_NE(ErrorOf(Choice({})), "");
  EXPECT_NE(ErrorOf(Choice({"a", ""})), "");
  EXPECT_NE(ErrorOf(Choice({"\xff"})).find("UTF-8"), std::string::npos);
}

TEST(JsonObjectTest, TakesAnyObject) {
  for (const char* text : {"{}", R"({"a":1})", R"({"a": [1, 2.5e3, -0.1], "b":{"c":null,"d":[{}]}})", R"({"\u00e9\n":"x\"y"})",
                           "{\n  \"a\": true\n}", "{\"\xf0\x9f\x98\x80\":\"\xc3\xa9\"}"}) {
    EXPECT_TRUE(Accepts(AnyObject(), text)) << text;
  }
  for (const char* text : {"", "[]", "1", "{", R"({"a"})", R"({"a":1,})", R"({"a":01})", R"({"a":.5})", R"({a:1})", "{}x", " {}",
                           "{\"a\":\"\n\"}", R"({"a":"\ud800"})", "{\"a\":\"\xff\"}", R"({"a":"\x"})", R"({'a':1})", R"({"a":nul})"}) {
    EXPECT_FALSE(Accepts(AnyObject(), text)) << text;
  }
  v1::Constraint off;
  off.set_json_object(false);
  EXPECT_NE(ErrorOf(off), "");
  EXPECT_NE(ErrorOf(v1::Constraint()), "");
}

TEST(JsonSchemaTest, TakesWhatSatisfiesIt) {
  const Case cases[] = {
      {"{}", {"1", "{}", "\"a\"", "[null]"}, {"", "x"}},
      {"true", {"1"}, {"x"}},
      {R"({"type":"null"})", {"null"}, {"0"}},
      {R"({"type":["integer","null"]})", {"null", "-12", "0"}, {"1.5", "01", "-"}},
      {R"({"type":"number"})", {"1", "-0.25", "1e5", "2.5E-10"}, {"1.", ".5", "1e999", "NaN", "+1"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a":1,"b":"x"})", R"({ "a": 1, "b": "" })"},
       {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"c":2})", R"({"a":1,"a":2})", R"({"a":"1"})", R"({"a":1,})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"required":["b"]})",
       {R"({"b":1})", R"({"a":1,"b":2})", R"({"b":1,"c":2})", R"({"a":1,"b":2,"c":3})"}, {"{}", R"({"a":1,"c":2})", R"({,"b":1})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {R"({"c":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},"required":["ab"],"additionalProperties":{"type":"boolean"}})",
       {R"({"ab":1})", R"({"ab":1,"a":true})", R"({"ab":1,"abc":false,"x":true})", R"({"ab":1,"":true})"},
       {R"({"ab":1,"ab":true})", R"({"ab":1,"x":2})", R"({"a":true})", R"({"ab":1,"\u0061b":true})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"}, {R"({"x":"y"})"}},
      {R"({"type":"object","required":["z"]})", {R"({"z":[]})"}, {"{}"}},
      {R"({"properties":{"a":{"type":"integer"}}})", {"{}", R"({"a":5})"}, {"1", R"({"a":""})"}},
      {R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1, 2,3]"}, {"[1,]", "[\"a\"]", "[,1]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1,2,3]"}, {"[1]", "[]", "[1,2,3,4]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2})", {"[1,2]", "[1,2,3,4,5]"}, {"[1]", "[]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1})", {"[1]", "[1,2,3]"}, {"[]"}},
      {R"({"type":"array","items":{"type":"integer"},"maxItems":1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}]})", {"[]", "[1]", R"([1,"a"])"}, {R"(["a"])", R"([1,"a",2])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"string"},"minItems":1})",
       {"[1]", R"([1,"a","b"])"}, {"[]", R"(["a"])", "[1,2]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":false})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"enum":["a",1,null,{"x":[1]}]})", {"\"a\"", "1", "null", R"({"x":[1]})"}, {"\"b\"", "2", "a"}},
      {R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
      {R"({"const":"x\"y"})", {R"("x\"y")"}, {"x"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"1\""}, {"null"}},
      {R"({"oneOf":[{"const":1},{"const":2}]})", {"1", "2"}, {"3"}},
      {R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],"anyOf":[{"properties":{"k":{"const":"a"}}},{"properties":{"k":{"const":"b"}}}]})",
       {R"({"k":"a"})", R"({"k":"b"})"}, {R"({"k":"c"})", "{}"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"string"}},"required":["b"]}]})",
       {R"({"a":1,"b":""})"}, {R"({"a":1})", R"({"b":""})"}},
      {R"({"allOf":[{"type":"number","minimum":3},{"type":"integer","minimum":1,"maximum":5}]})", {"3", "5"}, {"2", "6", "3.5"}},
      {R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"required":["v","next"]}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})", R"({"v":1,"next":2})"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
      {R"({"properties":{"a/b":{"type":"integer"},"r":{"$ref":"#/properties/a~1b"}}})", {R"({"a/b":1,"r":2})"}, {R"({"r":"x"})"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {"\"ab\"", "\"\xc3\xa9\\n\xe2\x82\xac\"", R"("\u00e9\"")"}, {"\"a\"", "\"abcd\"", "\"\""}},
      {R"({"type":"string","minLength":1})", {"\"a\"", "\"abcdef\""}, {"\"\""}},
      {R"({"type":"string","maxLength":0})", {"\"\""}, {"\"a\""}},
      {R"({"type":"string","pattern":"^[a-z]+$"})", {"\"abc\""}, {"\"\"", "\"aB\"", "\"a1\""}},
      {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"ac\""}},
      {R"({"type":"string","pattern":"^a|b$"})", {"\"ax\"", "\"xb\""}, {"\"xa\"", "\"bx\""}},
      {R"({"type":"string","pattern":"^[\"\\\\\\n\\x01]$"})", {R"("\"")", R"("\\")", R"("\n")", R"("\u0001")"}, {"\"\"\"", "\"\n\"", "\"a\""}},
      {R"({"type":"string","format":"date"})", {"\"2024-02-28\""}, {"\"2024-02-30\"", "\"2024-13-01\"", "\"x\""}},
      {R"({"type":"string","format":"date-time"})", {"\"2024-12-31T23:59:59Z\"", "\"1999-04-30T00:00:00.5+02:00\""}, {"\"2024-12-31\""}},
      {R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
      {R"({"type":"string","format":"ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\"", "\"1.1.1\""}},
      {R"({"type":"string","format":"email"})", {"\"a.b@c.example\""}, {"\"a\"", "\"a@b\""}},
      {R"({"type":"integer","minimum":0,"maximum":150})", {"0", "9", "10", "99", "100", "149", "150"}, {"-1", "151", "200", "1000", "00"}},
      {R"({"type":"integer","minimum":-12,"exclusiveMaximum":3})", {"-12", "-9", "-1", "0", "2"}, {"-13", "-20", "3", "10"}},
      {R"({"type":"integer","minimum":95})", {"95", "99", "100", "1234567"}, {"94", "9", "-100"}},
      {R"({"type":"integer","exclusiveMinimum":-3,"maximum":-1})", {"-2", "-1"}, {"-3", "0", "-10"}},
      {R"({"type":"number","minimum":0,"maximum":1})", {"0", "0.5", "1", "1.0", "0.999999"}, {"-0.1", "1.1", "2", "1.00001"}},
      {R"({"type":"number","exclusiveMinimum":0.25,"exclusiveMaximum":0.75})", {"0.26", "0.5", "0.250001", "0.7499"}, {"0.25", "0.75", "0.750", "0.2", "1"}},
      {R"({"type":"number","minimum":-1.5,"maximum":-0.5})", {"-1.5", "-0.5", "-1", "-1.499"}, {"-1.51", "-0.4", "0", "1"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "1", "10.5"}, {"0", "0.0", "-1"}},
  };
  for (const Case& c : cases) {
    for (const auto& text : c.yes) EXPECT_TRUE(Accepts(Schema(c.constraint), text)) << c.constraint << "\n  refuses " << text;
    for (const auto& text : c.no) EXPECT_FALSE(Accepts(Schema(c.constraint), text)) << c.constraint << "\n  takes " << text;
  }
}

TEST(JsonSchemaTest, RefusesByKeywordAndPlaceWhatItDoesNotKnow) {
  for (const auto& [schema, what] : std::vector<std::pair<const char*, const char*>>{
           {R"({"properties":{"a":{"type":"integer","multipleOf":0}}})", "/properties/a: \"multipleOf\" must be"},
           {R"({"properties":{"a":{"not":{}}}})", "/properties/a: \"not\""},
           {R"({"properties":{"a/b":{"type":"what"}}})", "/properties/a~1b: \"type\""},
           {R"({"type":"array","items":{"type":"array","uniqueItems":true}})", "/items: \"uniqueItems\""},
           {R"({"type":"object","patternProperties":{"a/(":{}}})", "/patternProperties/a~1(: as a regular expression"},
           {R"({"type":"object","patternProperties":["a"]})", "\"patternProperties\" must be an object"},
           {R"({"type":"object","patternProperties":{"^a":false},"required":["ab"]})", "not allowed"},
           {R"({"type":"object","propertyNames":{"pattern":"a"}})", "\"propertyNames\" is not supported"},
           {R"({"if":{"type":"string"},"then":{"minLength":1}})", "\"if\" is not supported"},
           {R"({"type":"string","format":"iri"})", "\"format\""},
           {R"({"type":"string","pattern":"a**"})", "/pattern: as a regular expression: nothing to repeat"},
           {R"({"type":"string","pattern":"a","maxLength":3})", "only one"},
           {R"({"$ref":"http://x"})", "\"$ref\" must be #"},
           {R"({"$ref":"#/nowhere"})", "\"$ref\" names a place"},
           {R"({"anyOf":[]})", "\"anyOf\" must be a list"},
           {R"({"enum":[]})", "\"enum\" must be a list"},
           {R"({"type":"string","enum":[1]})", "no value of its type"},
           {R"({"type":"object","properties":{"a":false},"required":["a"]})", "allows nothing"},
           {R"({"type":"object","required":["a"],"additionalProperties":false})", "not allowed"},
           {R"({"type":"integer","minimum":5,"maximum":4})", "above the largest"},
           {R"({"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":5})", "no text satisfies it"},
           {R"({"type":"array","minItems":-1})", "\"minItems\" must be an integer"},
           {R"({"type":"array","minItems":3,"maxItems":2})", "below minItems"},
           {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "no value in common"},
           {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})", "leaves out"},
           {"false", "allows nothing"},
           {"3", "must be an object"},
           {"{", "not valid JSON"},
       }) {
    EXPECT_NE(ErrorOf(Schema(schema)).find(what), std::string::npos) << schema << ": " << ErrorOf(Schema(schema));
  }
  EXPECT_EQ(FieldOf(Compiled(Schema("3")).status()), "sampling.constraint.json_schema");
}

}  // namespace
}  // namespace baton::constraint
