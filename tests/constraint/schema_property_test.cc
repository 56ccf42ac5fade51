// multipleOf and patternProperties against validators that count in integers and look at one pattern after the other: what
// the grammar takes is exactly what they say of texts in the form that is written (constraint/json_schema.h).
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/constraint/constraint_test_util.h"

namespace baton::constraint {
namespace {

using Json = nlohmann::ordered_json;

// A compiled schema that is asked about many texts.
class Taker {
 public:
  explicit Taker(const Json& schema) {
    const auto grammar = Compiled(Schema(schema.dump()));
    if (grammar.ok()) automaton_ = std::make_unique<Automaton>(*grammar);
    status_ = grammar.status();
  }
  const absl::Status& status() const { return status_; }
  bool Takes(const std::string& text) {
    Automaton::StateId state = Automaton::kStart;
    for (const char byte : text) state = automaton_->Next(state, static_cast<uint8_t>(byte));
    return automaton_->MayEnd(state);
  }

 private:
  std::unique_ptr<Automaton> automaton_;
  absl::Status status_;
};

// What is written as digits over 10^places.
struct Fixed {
  int64_t digits;
  int places;
  absl::int128 Scaled() const {  // over 10^15
    absl::int128 out = digits;
    for (int i = places; i < 15; ++i) out *= 10;
    return out;
  }
  std::string Text() const {
    std::string text = absl::StrCat(digits < 0 ? -digits : digits);
    if (places > 0) {
      while (text.size() <= static_cast<size_t>(places)) text.insert(0, "0");
      text.insert(text.size() - static_cast<size_t>(places), ".");
    }
    return (digits < 0 ? "-" : "") + text;
  }
};

TEST(MultipleOfTest, TakesTheMultiplesWithinTheBoundsAndNothingElse) {
  std::mt19937_64 rng(11);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  int taken = 0, refused = 0;
  for (int round = 0; round < 150; ++round) {
    const bool integer = pick(2) == 0;
    const int64_t wide = std::vector<int64_t>{12, 200, 1000}[static_cast<size_t>(pick(3))];
    const Fixed divisor{(1 + pick(wide)) * (pick(5) == 0 ? 1000 : 1), static_cast<int>(pick(4))};
    Json schema = {{"type", integer ? "integer" : "number"}, {"multipleOf", Json::parse(divisor.Text())}};
    const Fixed low{pick(4'000'000) - 2'000'000, static_cast<int>(pick(4))};
    const Fixed high{low.digits + pick(3'000'000), low.places};
    const bool has_low = pick(2) == 0, has_high = pick(2) == 0, open = pick(2) == 0;
    if (has_low) schema[open ? "exclusiveMinimum" : "minimum"] = Json::parse(low.Text());
    if (has_high) schema[open ? "exclusiveMaximum" : "maximum"] = Json::parse(high.Text());
    SCOPED_TRACE(schema.dump());
    Taker taker(schema);
    // The digits of a divisor end where those of 1.500 do.
    int places = divisor.places;
    for (int64_t d = divisor.digits; places > 0 && d % 10 == 0; d /= 10) --places;
    for (int i = 0; i < 300; ++i) {
      Fixed number;
      number.places = integer ? 0 : static_cast<int>(pick(places + 2));
      switch (pick(4)) {
        case 0:  // a multiple, or nearly
          number.digits = divisor.digits * (pick(2000) - 1000);
          for (int p = divisor.places; p > number.places; --p) number.digits /= 10;
          for (int p = divisor.places; p < number.places; ++p) number.digits *= 10;
          number.digits += pick(3) == 0 ? pick(3) - 1 : 0;
          break;
        case 1:  // near a bound
          number.digits = (pick(2) ? low : high).digits + pick(5) - 2;
          break;
        case 2:
          number.digits = (pick(2) ? 1 : -1) * (pick(1'000'000'000'000'000) >> pick(50));
          break;
        default:
          number.digits = pick(400) - 200;
      }
      const absl::int128 value = number.Scaled();
      const bool within = (!has_low || (open ? value > low.Scaled() : value >= low.Scaled())) &&
                          (!has_high || (open ? value < high.Scaled() : value <= high.Scaled()));
      const bool multiple = value % divisor.Scaled() == 0;
      const bool expected = within && multiple && number.places <= (integer ? 0 : places);
      if (!taker.status().ok()) {
        // The generator's bounds may leave nothing; then nothing may be taken.
        ASSERT_TRUE(absl::StrContains(taker.status().message(), "no text satisfies")) << taker.status();
        ASSERT_FALSE(expected) << number.Text();
        continue;
      }
      ASSERT_EQ(taker.Takes(number.Text()), expected) << number.Text();
      (expected ? taken : refused) += 1;
    }
  }
  EXPECT_GT(taken, 2000);
  EXPECT_GT(refused, 10000);
}

TEST(MultipleOfTest, OnlyNumbersInTheirShortestForm) {
  Taker taker(Json{{"type", "integer"}, {"multipleOf", 7}});
  for (const char* text : {"0", "7", "-7", "14", "100000000000001"}) {
    EXPECT_EQ(taker.Takes(text), std::stoll(text) % 7 == 0) << text;
  }
  for (const char* text : {"", "-", "-0", "07", "007", "+7", "7.0", "7e0", "7 ", "1000000000000006", "\"7\""}) {
    EXPECT_FALSE(taker.Takes(text)) << text;
  }
}

TEST(MultipleOfTest, WhatNeedsTooMuchIsRefusedAndFactorsOfTenAreFree) {
  for (const auto& [divisor, what] : std::vector<std::pair<const char*, const char*>>{
           {"0", "above 0"}, {"-2", "above 0"}, {"\"2\"", "above 0"}, {"1009", "is supported up to 1000"}, {"7919", "is supported up to 1000"},
           {"1e300", "more than 15 digits"}, {"1e-30", "more than 15 digits"}, {"1234567.12345678", "is supported up to 1000"}}) {
    const std::string error = ErrorOf(Schema(absl::StrCat(R"({"type":"integer","multipleOf":)", divisor, "}")));
    EXPECT_TRUE(absl::StrContains(error, what)) << divisor << ": " << error;
  }
  for (const char* divisor : {"1", "2", "1000", "86400", "3600", "1000000", "1024", "997", "0.01", "0.25", "1e-9", "2.5", "1250000", "1099511627776"}) {
    for (const char* type : {"integer", "number"}) {
      EXPECT_EQ(ErrorOf(Schema(absl::StrCat(R"({"type":")", type, R"(","multipleOf":)", divisor, "}"))), "") << divisor;
    }
  }
  EXPECT_TRUE(Accepts(Schema(R"({"allOf":[{"type":"integer","multipleOf":4},{"multipleOf":6}]})"), "12"));
  EXPECT_FALSE(Accepts(Schema(R"({"allOf":[{"type":"integer","multipleOf":4},{"multipleOf":6}]})"), "24000006"));
  EXPECT_NE(ErrorOf(Schema(R"({"allOf":[{"type":"number","multipleOf":0.5},{"multipleOf":0.3}]})")), "");
}

// The patterns of the test, and whether they match, said without regular expressions.
struct Pattern {
  const char* text;
  bool (*matches)(const std::string& name);
};
const Pattern kPatterns[] = {
    {"^a", [](const std::string& n) { return absl::StartsWith(n, "a"); }},
    {"b$", [](const std::string& n) { return absl::EndsWith(n, "b"); }},
    {"ab", [](const std::string& n) { return absl::StrContains(n, "ab"); }},
    {"^[ab]{2}$", [](const std::string& n) { return n.size() == 2 && n.find_first_not_of("ab") == std::string::npos; }},
    {"\xc3\xa9", [](const std::string& n) { return absl::StrContains(n, "\xc3\xa9"); }},
    {"", [](const std::string&) { return true; }},
    {"^$", [](const std::string& n) { return n.empty(); }},
};

// Schemas of values and what they let through.
struct Kind {
  Json schema;
  bool (*holds)(const Json& value);
};
const std::vector<Kind>& Kinds() {
  static const auto* const kKinds = new std::vector<Kind>{
      {{{"type", "integer"}}, [](const Json& v) { return v.is_number_integer(); }},
      {{{"type", Json::array({"integer", "boolean"})}}, [](const Json& v) { return v.is_number_integer() || v.is_boolean(); }},
      {{{"enum", Json::array({1, 2, "x"})}}, [](const Json& v) { return v == 1 || v == 2 || v == "x"; }},
      {{{"type", "string"}}, [](const Json& v) { return v.is_string(); }},
      {true, [](const Json&) { return true; }},
      {false, [](const Json&) { return false; }},
  };
  return *kKinds;
}

TEST(PatternPropertiesTest, TakesExactlyTheObjectsThatHold) {
  std::mt19937_64 rng(23);
  const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  const std::vector<std::string> names = {"", "a", "b", "ab", "ba", "aa", "c", "abc", "cab", "\xc3\xa9", "a\xc3\xa9", "\xe2\x82\xac"};
  const std::vector<Json> values = {1, 2, 30, true, "x", "y", nullptr};
  int taken = 0, refused = 0, without_text = 0;
  for (int round = 0; round < 400; ++round) {
    Json schema = {{"type", "object"}};
    std::vector<std::pair<const Pattern*, const Kind*>> patterns;
    std::vector<std::pair<std::string, const Kind*>> properties;
    const Kind* additional = nullptr;
    for (const Pattern& pattern : kPatterns) {
      if (pick(4) != 0) continue;
      patterns.push_back({&pattern, &Kinds()[pick(Kinds().size())]});
      schema["patternProperties"][pattern.text] = patterns.back().second->schema;
    }
    for (const std::string& name : names) {
      if (pick(6) != 0) continue;
      properties.push_back({name, &Kinds()[pick(Kinds().size())]});
      schema["properties"][name] = properties.back().second->schema;
    }
    std::vector<std::string> required;
    for (const std::string& name : names) {
      if (pick(15) == 0) required.push_back(name);
    }
    if (!required.empty()) schema["required"] = required;
    if (pick(2) == 0) {
      additional = &Kinds()[pick(Kinds().size())];
      schema["additionalProperties"] = additional->schema;
    }
    if (patterns.empty() && properties.empty() && additional == nullptr) continue;
    SCOPED_TRACE(schema.dump());
    Taker taker(schema);
    for (const std::string& name : required) {
      const bool declared = std::any_of(properties.begin(), properties.end(), [&](const auto& p) { return p.first == name; });
      if (!declared) properties.push_back({name, nullptr});
    }
    // Whether `name` may hold `value`; `written`: the grammar writes such a name at all.
    const auto holds = [&](const std::string& name, const Json& value, bool* written) {
      bool spoken_of = false, good = true;
      for (const auto& [declared, kind] : properties) {
        if (declared != name) continue;
        *written = true;
        spoken_of = kind != nullptr;
        good = kind == nullptr || kind->holds(value);
      }
      for (const auto& [pattern, kind] : patterns) {
        if (!pattern->matches(name)) continue;
        *written = spoken_of = true;
        good = good && kind->holds(value);
      }
      if (spoken_of || additional == nullptr) return good;
      *written = true;
      return good && additional->holds(value);
    };
    for (int i = 0; i < 60; ++i) {
      // Declared members in the schema's order, then others; now and then one too few.
      Json object = Json::object();
      bool expected = true;
      const auto put = [&](const std::string& name) {
        Json value = values[pick(values.size())];
        for (int attempt = 0; attempt < 8 && pick(5) != 0; ++attempt) {
          bool ignored = false;
          if (holds(name, value, &ignored)) break;
          value = values[pick(values.size())];
        }
        bool written = false;
        expected = holds(name, value, &written) && written && expected;
        object[name] = value;
      };
      for (const auto& [name, kind] : properties) {
        const bool needed = std::find(required.begin(), required.end(), name) != required.end();
        if (pick(8) != 0 ? needed || pick(2) == 0 : pick(2) == 0) put(name);
        expected = expected && (!needed || object.contains(name));
      }
      for (size_t others = pick(3); others > 0; --others) {
        const std::string& name = names[pick(names.size())];
        const bool declared = std::any_of(properties.begin(), properties.end(), [&](const auto& p) { return p.first == name; });
        if (!declared && !object.contains(name)) put(name);
      }
      if (!taker.status().ok()) {
        ASSERT_FALSE(expected) << object << taker.status();
        ++without_text;
        continue;
      }
      ASSERT_EQ(taker.Takes(object.dump()), expected) << object;
      (expected ? taken : refused) += 1;
    }
  }
  EXPECT_GT(taken, 2000);
  EXPECT_GT(refused, 2000);
  EXPECT_LT(without_text, taken);
}

// Bug: a property that may not be there was taken as one of the additional ones.
TEST(PatternPropertiesTest, APropertyThatMayNotBeThereIsNoAdditionalOne) {
  const v1::Constraint c = Schema(R"({"type":"object","properties":{"a":false},"additionalProperties":{"type":"integer"}})");
  EXPECT_TRUE(Accepts(c, R"({"b":1})"));
  EXPECT_FALSE(Accepts(c, R"({"a":1})"));
}

TEST(PatternPropertiesTest, NamesHaveOneSpellingAndAreStrings) {
  Taker taker(Json{{"patternProperties", {{"^x", {{"type", "integer"}}}}}});
  for (const char* text : {"{}", "{\"x\":1}", "{ \"x\": 1, \"xyz\":2 }", "{\"x\xf0\x9f\x98\x80\":1}", "{\"x\x7f\":1}"}) EXPECT_TRUE(taker.Takes(text)) << text;
  for (const char* text : {"{\"\\u0078\":1}", "{\"x\\n\":1}", "{\"x\n\":1}", "{\"x\xff\":1}", "{\"x\xed\xa0\x80\":1}", "{\"y\":1}", "{x:1}", "{\"x\":\"1\"}",
                           "{\"x\":1,}", "1"}) {
    EXPECT_FALSE(taker.Takes(text)) << text;
  }
}

TEST(PatternPropertiesTest, SchemasThatHoldTogetherAreExactOrRefused) {
  const v1::Constraint both = Schema(R"({"allOf":[{"type":"object","patternProperties":{"^x":{"type":"integer","minimum":1}}},
      {"patternProperties":{"^x":{"maximum":5},"y$":{"multipleOf":2}},"properties":{"xa":{"multipleOf":3}}}]})");
  for (const char* text : {R"({"xa":3,"xb":5})", R"({"xy":4})", R"({"xy":2,"x":1})"}) EXPECT_TRUE(Accepts(both, text)) << text;
  for (const char* text : {R"({"xa":4})", R"({"xb":0})", R"({"xb":6})", R"({"xy":3})"}) EXPECT_FALSE(Accepts(both, text)) << text;
  EXPECT_NE(ErrorOf(Schema(R"({"allOf":[{"patternProperties":{"a":{}}},{"additionalProperties":false}]})")).find("patternProperties"), std::string::npos);
  const v1::Constraint recursive = Schema(R"({"type":"object","patternProperties":{"^c":{"$ref":"#"}}})");
  EXPECT_TRUE(Accepts(recursive, R"({"c":{"cc":{}}})"));
  EXPECT_FALSE(Accepts(recursive, R"({"c":{"d":{}}})"));
}

}  // namespace
}  // namespace baton::constraint
