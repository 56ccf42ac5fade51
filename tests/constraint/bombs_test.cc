// Constraints that are meant to explode: each is refused with a typed error, or works, and either way at once. The bounds
// are on states and on places looked at, so the counts here fail on any machine when a bound is lost.
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/constraint/constraint_test_util.h"

namespace baton::constraint {
namespace {

std::string Repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST(BombsTest, RegexesAreRefusedByTheirSize) {
  for (const auto& [regex, what] : std::vector<std::pair<std::string, const char*>>{
           {"a{1,1000000}", "more than 1000"},
           {"(a{1000}){1000}", "too big"},
           {"(((a{100}){100}){100}){100}", "too big"},
           {"((){1000}){1000}", "too big"},
           {"(.{0,1000}){100}", "too big"},
           {Repeated("(", 100) + "a" + Repeated(")", 100), "deeper than"},
           {Repeated("(", 5000), "deeper than"},
           {Repeated("a", 9000), "at most"},
           {Repeated("[^a]", 2000) + "{1000}", "too big"}}) {
    EXPECT_NE(ErrorOf(Regex(regex)).find(what), std::string::npos) << regex.substr(0, 30) << ": " << ErrorOf(Regex(regex));
  }
}

TEST(BombsTest, GrammarsAreRefusedByTheirSize) {
  std::string chain = "root ::= r0\n";  // of rules that may be empty, each known to be so only after the next one
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&chain, "r", i, "::=r", i + 1, "\n");
  std::string doubling = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) absl::StrAppend(&doubling, "r", i, " ::= (r", i + 1, " r", i + 1, "){1000}\n");
  for (const auto& [grammar, what] : std::vector<std::pair<std::string, const char*>>{
           {chain, "more than 1000 rules"},
           {absl::StrCat(doubling, "r60 ::= \"a\""), "too big"},
           {"root ::= (\"a\"{1000}){1000}", "too big"},
           {absl::StrCat("root ::= ", Repeated("(", 5000)), "deeper than"},
           {absl::StrCat("root ::= \"", std::string(70000, 'a'), "\""), "at most"},
           {absl::StrCat("root ::= ", Repeated("[^a]", 10000)), "too big"}}) {
    EXPECT_NE(ErrorOf(Gbnf(grammar)).find(what), std::string::npos) << grammar.substr(0, 40) << ": " << ErrorOf(Gbnf(grammar));
  }
}

TEST(BombsTest, SchemasAreRefusedByTheirSizeOrBecauseTheyHaveNoBase) {
  std::string deep = R"({"type":"array"})";
  for (int i = 0; i < 70; ++i) deep = absl::StrCat(R"({"type":"array","items":)", deep, "}");
  std::string doubling = R"({"a0":{"type":"string"})";
  for (int i = 1; i < 40; ++i) {
    absl::StrAppend(&doubling, R"(,"a)", i, R"(":{"allOf":[{"$ref":"#/$defs/a)", i - 1, R"("},{"$ref":"#/$defs/a)", i - 1, R"("}]})");
  }
  std::string names;
  for (int i = 0; i < 900; ++i) absl::StrAppend(&names, i == 0 ? "" : ",", "\"p", i, "\":{}");
  std::string refs;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&refs, i == 0 ? "" : ",", R"({"$ref":"#/$defs/w"})");
  std::string values;
  for (int i = 0; i < 8000; ++i) absl::StrAppend(&values, i == 0 ? "" : ",", i);
  std::string many_patterns;
  for (int i = 0; i < 33; ++i) absl::StrAppend(&many_patterns, i == 0 ? "" : ",", "\"^p", i, "\":{}");
  std::string branches;
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&branches, i == 0 ? "" : ",", R"({"type":"array","minItems":10000,"items":{"const":)", i, "}}");
  }
  std::string items = R"({"type":"array","minItems":1000,"items":{"type":"array","minItems":1000,"items":{"type":"array","minItems":1000}}})";
  for (const auto& [schema, what] : std::vector<std::pair<std::string, const char*>>{
           {deep, "nested deeper than 64"},
           {absl::StrCat(R"({"$ref":"#/$defs/a39","$defs":)", doubling, "}}"), "too many steps"},
           {absl::StrCat(R"({"allOf":[)", refs, R"(],"$defs":{"w":{"type":"object","properties":{)", names, "}}}}"), "too many steps"},
           {absl::StrCat(R"({"allOf":[{"$ref":"#/$defs/w"},{"$ref":"#/$defs/w"}],"$defs":{"w":{"enum":[)", values, "]}}}"), "too many steps"},
           {absl::StrCat(R"({"anyOf":[)", branches, "]}"), "too big"},
           {R"({"$ref":"#"})", "refers to itself"},
           {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "refers to itself"},
           {R"({"anyOf":[{"$ref":"#"},{"type":"integer"}]})", "refers to itself"},
           {R"({"allOf":[{"$ref":"#"},{"type":"object"}]})", "too many steps"},
           {R"({"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]})", "no text satisfies it"},
           {R"({"type":"array","items":{"$ref":"#"},"minItems":1})", "no text satisfies it"},
           {R"({"patternProperties":{"a.{30}$":{}}})", "too many states together"},
           {R"({"patternProperties":{"(a{1000}){1000}":{}}})", "too big"},
           {absl::StrCat(R"({"patternProperties":{)", many_patterns, "}}"), "at most 32 patterns"},
           {R"({"type":"array","prefixItems":[{"multipleOf":997},{"multipleOf":991},{"multipleOf":983},{"multipleOf":977},{"multipleOf":971},{"multipleOf":967}]})", "too big"},
           {R"({"type":"string","minLength":1000000})", "must be an integer from 0 to"},
           {R"({"type":"string","pattern":"(a{1000}){1000}"})", "too big"},
           {absl::StrCat(R"({"enum":[")", std::string(70000, 'a'), R"("]})"), "at most"}}) {
    EXPECT_NE(ErrorOf(Schema(schema)).find(what), std::string::npos) << schema.substr(0, 60) << ": " << ErrorOf(Schema(schema));
  }
  // Each list is in a rule of its own, so this one is small.
  EXPECT_EQ(ErrorOf(Schema(items)), "");
}

TEST(BombsTest, HugeButHonestOnesWork) {
  std::vector<std::string> many;
  for (int i = 0; i < 5000; ++i) many.push_back(absl::StrCat("choice-", i));
  EXPECT_TRUE(Accepts(Choice(many), "choice-4999"));
  EXPECT_FALSE(Accepts(Choice(many), "choice-5000"));
  std::string properties;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&properties, i == 0 ? "" : ",", "\"p", i, "\":{\"type\":\"integer\"}");
  const v1::Constraint wide = Schema(absl::StrCat(R"({"type":"object","properties":{)", properties, "}}"));
  EXPECT_TRUE(Accepts(wide, R"({"p1":1,"p999":2})"));
  EXPECT_FALSE(Accepts(wide, R"({"p999":1,"p1":2})"));
  EXPECT_TRUE(Accepts(Regex("(a?){1000}a{1000}"), std::string(1500, 'a')));
  EXPECT_TRUE(Accepts(Regex("(a*)*(a|a)*b"), std::string(3000, 'a') + "b"));
  EXPECT_TRUE(Accepts(Schema(R"({"type":"string","maxLength":5000})"), "\"" + std::string(5000, 'x') + "\""));
  EXPECT_FALSE(Accepts(Schema(R"({"type":"string","maxLength":5000})"), "\"" + std::string(5001, 'x') + "\""));
}

// Deeper nesting than the bound is never begun, so that what was begun can be completed.
TEST(BombsTest, NestingEndsAtTheBound) {
  const auto grammar = Compiled(AnyObject());
  ASSERT_TRUE(grammar.ok());
  Automaton automaton(*grammar);
  Automaton::StateId state = Automaton::kStart;
  int depth = 0;
  for (; depth < 1000 && state != Automaton::kDead; ++depth) {
    for (const char c : std::string("{\"a\":")) state = automaton.Next(state, static_cast<uint8_t>(c));
  }
  EXPECT_GT(depth, 32);
  EXPECT_LT(depth, kMaxCallDepth + 2);
}

TEST(BombsTest, AmbiguityIsRefusedTheSameAtEveryTime) {
  // Behind the b, eight thousand places are open at once.
  const auto grammar = Compile(Regex("[b-z]((a?){85}){90}"), TestVocabulary()->spellable());
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::vector<absl::Status> statuses;
  for (int round = 0; round < 2; ++round) {
    TokenConstraint constraint(*grammar, TestVocabulary());
    for (int again = 0; again < 2; ++again) {
      TokenConstraint::Position position;
      ASSERT_TRUE(constraint.MoveTo({}, &position).ok());
      statuses.push_back(constraint.Mask(position).status());
    }
  }
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST(BombsTest, StatesAndMasksAreKeptWithinTheBound) {
  const auto vocabulary = TestVocabulary();
  const auto grammar = Compile(AnyObject(), vocabulary->spellable());
  ASSERT_TRUE(grammar.ok());
  TokenConstraint constraint(*grammar, vocabulary);
  std::mt19937_64 rng(3);
  size_t most = 0;
  for (int walk = 0; walk < 60; ++walk) {
    TokenConstraint::Position position;
    std::vector<int32_t> text;
    for (int step = 0; step < 200; ++step) {
      ASSERT_TRUE(constraint.MoveTo(text, &position).ok());
      const auto mask = constraint.Mask(position);
      ASSERT_TRUE(mask.ok());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        if ((*mask)->Allows(id)) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      text.push_back(allowed[rng() % allowed.size()]);
      most = std::max(most, constraint.memory_bytes());
    }
  }
  EXPECT_LT(most, 2 * TokenConstraint::kMaxMemoryBytes);
}

TEST(BombsTest, TheCompilerKeepsOnlyTheNewest) {
  ConstraintCompiler compiler(TestVocabulary(), true);
  v1::SamplingParams sampling;
  std::vector<std::weak_ptr<TokenConstraint>> made;
  for (int i = 0; i < 1000; ++i) {
    *sampling.mutable_constraint() = Choice({absl::StrCat(i)});
    const auto constraint = compiler.ForRequest(sampling);
    ASSERT_TRUE(constraint.ok());
    made.push_back(*constraint);
  }
  size_t alive = 0;
  for (const auto& one : made) alive += !one.expired();
  EXPECT_EQ(alive, ConstraintCompiler::kMaxKept);
  const auto again = compiler.ForRequest(sampling);
  EXPECT_EQ(*again, made.back().lock()) << "the same constraint is compiled once";
  // Refusals.
  sampling.set_ignore_eos(true);
  EXPECT_EQ(compiler.ForRequest(sampling).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckConstraint(sampling).code(), absl::StatusCode::kInvalidArgument);
  sampling.set_ignore_eos(false);
  EXPECT_EQ(ConstraintCompiler(TestVocabulary(), false).ForRequest(sampling).status().code(),
            absl::StatusCode::kInvalidArgument);
  // This vocabulary cannot write one of its bytes.
  *sampling.mutable_constraint() = Choice({"\x06"});
  EXPECT_TRUE(CheckConstraint(sampling).ok());
  EXPECT_EQ(compiler.ForRequest(sampling).status().code(), absl::StatusCode::kInvalidArgument);
}

// Whatever text comes as a regex or a schema, it compiles or is refused.
TEST(BombsTest, NoiseIsCompiledOrRefused) {
  std::mt19937_64 rng(17);
  const std::vector<std::string> pieces = {"a", "b", "(", ")", "[", "]", "^", "$", "*", "+", "?", "{2}", "{0,3}", "|", "\\d", "\\", ".", "-",
                                           "(?:", "\xc3\xa9", "{", "}", ",", "[^", "\\x41"};
  int good = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string regex;
    for (int n = static_cast<int>(rng() % 12); n >= 0; --n) regex += pieces[rng() % pieces.size()];
    good += ErrorOf(Regex(regex)).empty();
  }
  EXPECT_GT(good, 100);
  const std::vector<std::string> keys = {"type", "properties", "items", "anyOf", "allOf", "$ref", "enum", "required", "minItems", "maxItems", "minimum",
                                         "maximum", "pattern", "format", "minLength", "prefixItems", "additionalProperties", "const", "not", "title", "multipleOf", "patternProperties"};
  const std::vector<std::string> leaves = {"\"object\"", "\"string\"", "\"integer\"", "\"array\"", "true", "false", "null", "3", "-1", "1e300", "0.1", "\"#\"",
                                           "\"#/properties/a\"", "[\"a\"]", "[]", "{}", "\"x\"", "[1,2]", "[{}]", "\"date\""};
  const std::function<std::string(int)> schema = [&](int depth) {
    std::string out = "{";
    const int n = static_cast<int>(rng() % 4);
    for (int i = 0; i < n; ++i) {
      if (i > 0) out += ",";
      const std::string& key = keys[rng() % keys.size()];
      const bool nested = depth > 0 && rng() % 2 == 0;
      absl::StrAppend(&out, "\"", key, "\":");
      if (!nested) {
        out += leaves[rng() % leaves.size()];
      } else if (key == "anyOf" || key == "allOf" || key == "prefixItems") {
        absl::StrAppend(&out, "[", schema(depth - 1), ",", schema(depth - 1), "]");
      } else if (key == "patternProperties") {
        absl::StrAppend(&out, "{\"^a\":", schema(depth - 1), ",\"b\":", schema(depth - 1), "}");
      } else if (key == "properties") {
        absl::StrAppend(&out, "{\"a\":", schema(depth - 1), ",\"b\":", schema(depth - 1), "}");
      } else {
        out += schema(depth - 1);
      }
    }
    return out + "}";
  };
  good = 0;
  for (int i = 0; i < 5000; ++i) good += ErrorOf(Schema(schema(3))).empty();
  EXPECT_GT(good, 300);
}

}  // namespace
}  // namespace baton::constraint
