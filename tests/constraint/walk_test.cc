// Random walks through the masks of random schemas, token by token: every walk ends, and its text is JSON that satisfies the
// schema, as a parser and a validator that know nothing of grammars see it. So no walk can get stuck, and the masks agree
// with the automaton byte by byte.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/constraint/constraint_test_util.h"

namespace baton::constraint {
namespace {

using Json = nlohmann::ordered_json;

// Of what RandomSchema uses.
class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool Holds(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const std::string ref = schema["$ref"];
      if (!Holds(ref == "#" ? root_ : root_["$defs"][ref.substr(8)], value)) return false;
    }
    if (schema.contains("anyOf")) {
      bool some = false;
      for (const Json& one : schema["anyOf"]) some = some || Holds(one, value);
      if (!some) return false;
    }
    for (const Json& one : schema.value("allOf", Json::array())) {
      if (!Holds(one, value)) return false;
    }
    if (schema.contains("const") && value != schema["const"]) return false;
    if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) return false;
    if (schema.contains("type")) {
      bool some = false;
      for (const Json& type : schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]})) some = some || IsType(type, value);
      if (!some) return false;
    }
    return (!value.is_object() || Object(schema, value)) && (!value.is_array() || Array(schema, value)) &&
           (!value.is_number() || Number(schema, value)) && (!value.is_string() || String(schema, value));
  }

 private:
  static bool IsType(const std::string& type, const Json& value) {
    return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) || (type == "string" && value.is_string()) ||
           (type == "object" && value.is_object()) || (type == "array" && value.is_array()) || (type == "number" && value.is_number()) ||
           (type == "integer" && value.is_number() && std::floor(value.get<double>()) == value.get<double>());
  }
  bool Object(const Json& schema, const Json& value) const {
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (auto it = value.begin(); it != value.end(); ++it) {
      bool spoken_of = properties.contains(it.key());
      if (spoken_of && !Holds(properties[it.key()], it.value())) return false;
      const Json patterns = schema.value("patternProperties", Json::object());
      for (auto p = patterns.begin(); p != patterns.end(); ++p) {
        if (!absl::StartsWith(it.key(), p.key().substr(1))) continue;  // they are all of this form
        spoken_of = true;
        if (!Holds(p.value(), it.value())) return false;
      }
      if (!spoken_of && !Holds(schema.value("additionalProperties", Json(true)), it.value())) return false;
    }
    return true;
  }
  bool Array(const Json& schema, const Json& value) const {
    if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", size_t{1000000})) return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (!Holds(i < prefix.size() ? prefix[i] : schema.value("items", Json(true)), value[i])) return false;
    }
    return true;
  }
  static bool Number(const Json& schema, const Json& value) {
    const double v = value.get<double>();
    if (schema.contains("multipleOf") && std::fmod(v * 4, schema["multipleOf"].get<double>() * 4) != 0) return false;  // quarters
    return v >= schema.value("minimum", -1e300) && v <= schema.value("maximum", 1e300) && v > schema.value("exclusiveMinimum", -1e300) &&
           v < schema.value("exclusiveMaximum", 1e300);
  }
  static bool String(const Json& schema, const Json& value) {
    size_t length = 0;
    for (const char c : value.get<std::string>()) length += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
    return length >= schema.value("minLength", size_t{0}) && length <= schema.value("maxLength", size_t{1000000});
  }
  const Json& root_;
};

class SchemaMaker {
 public:
  explicit SchemaMaker(uint64_t seed) : rng_(seed) {}

  Json Root() {
    Json defs;
    for (const char* name : {"a", "b"}) defs[name] = Make(2, true);
    Json root = Make(3, true);
    root["$defs"] = defs;
    return root;
  }

 private:
  int Pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }

  // With `solid`, something that takes a byte before it refers to anything, and may always end without.
  Json Make(int depth, bool solid) {
    switch (Pick(depth > 0 ? 9 : 5)) {
      case 0:
        return Json{{"type", Json::array({"null", "boolean"})}};
      case 1: {
        Json out = {{"type", "string"}};
        if (Pick(2)) out["minLength"] = Pick(3);
        if (Pick(2)) out["maxLength"] = 3 + Pick(5);
        return out;
      }
      case 2: {
        const double low = (Pick(4000) - 2000) / (Pick(2) ? 100.0 : 1.0);
        Json out = {{"type", Pick(2) ? "integer" : "number"}};
        if (Pick(2)) out["minimum"] = low;
        if (Pick(2)) out["exclusiveMaximum"] = low + 2 + Pick(500) / 7;
        if (Pick(3) == 0) out["multipleOf"] = (1 + Pick(7)) / 4.0;
        return out;
      }
      case 3:
        return Json{{"enum", Json::array({"x", 1, nullptr, Json{{"k", Json::array({1, "\"\xc3\xa9"})}}})}};
      case 4:
        return solid ? Json{{"const", "\n"}} : Json{{"$ref", Pick(2) ? "#/$defs/a" : "#/$defs/b"}};
      case 5: {
        Json out = {{"type", "array"}};
        if (Pick(2)) out["prefixItems"] = Json::array({Make(depth - 1, true)});
        if (Pick(3)) out["items"] = Make(depth - 1, false);
        if (Pick(2)) out["maxItems"] = Pick(4);
        return out;
      }
      case 6:
        return Json{{"anyOf", Json::array({Make(depth - 1, solid), Make(0, true)})}};
      case 7:
        return Json{{"allOf", Json::array({Json{{"type", "object"}, {"properties", {{"p", Make(depth - 1, true)}}}},
                                           Json{{"properties", {{"q", Make(0, true)}}}, {"required", Json::array({"q"})}}})}};
      default: {
        Json out = {{"type", "object"}};
        Json properties = Json::object();
        for (const char* name : {"name", "na", "\xe2\x82\xac", "a\"b"}) {
          if (Pick(2)) properties[name] = Make(depth - 1, false);
        }
        if (Pick(3)) out["properties"] = properties;
        if (Pick(3) == 0) out["patternProperties"] = {{"^na", Make(depth - 1, false)}, {"^n", Make(0, true)}, {"^x", Make(0, true)}};
        if (Pick(2)) out["additionalProperties"] = Pick(2) ? Json(false) : Make(depth - 1, false);
        if (Pick(2) && properties.contains("na") && out.contains("properties")) {
          out["properties"]["na"] = Make(0, true);
          out["required"] = Json::array({"na"});
        }
        return out;
      }
    }
  }
  std::mt19937_64 rng_;
};

// Walks until the text may end and the walker is tired of it, or nothing else is left.
std::string Walk(TokenConstraint* constraint, std::mt19937_64* rng) {
  const Vocabulary& vocabulary = constraint->vocabulary();
  TokenConstraint::Position position;
  std::vector<int32_t> tokens;
  std::string text;
  bool in_string = false, escaped = false;
  for (int step = 0; step < 20000; ++step) {
    absl::Status status = constraint->MoveTo(tokens, &position);
    EXPECT_TRUE(status.ok()) << status;
    const auto mask = constraint->Mask(position);
    if (!mask.ok()) {
      ADD_FAILURE() << mask.status();
      return "";
    }
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if ((*mask)->Allows(id)) allowed.push_back(id);
    }
    EXPECT_EQ(static_cast<int>(allowed.size()), (*mask)->num_tokens());
    if ((*mask)->may_end() && (allowed.empty() || (*rng)() % 3 == 0 || step > 100)) return text;
    if (allowed.empty()) {
      ADD_FAILURE() << "stuck behind " << text;
      return text;
    }
    // A tired walker closes what it can, so that every walk ends.
    int32_t id = allowed[(*rng)() % allowed.size()];
    if (step > 60) {
      for (const int32_t one : allowed) {
        const absl::string_view bytes = vocabulary.bytes(one);
        if (in_string ? bytes == "\"" : bytes == "}" || bytes == "]") id = one;
      }
    }
    tokens.push_back(id);
    for (const char c : vocabulary.bytes(id)) {
      in_string = in_string != (c == '"' && !escaped);
      escaped = c == '\\' && !escaped;
      text += c;
    }
  }
  ADD_FAILURE() << "does not end: " << text.substr(0, 200);
  return text;
}

TEST(WalkTest, EveryWalkThroughARandomSchemaSatisfiesIt) {
  const auto vocabulary = TestVocabulary();
  std::mt19937_64 rng(99);
  int compiled = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Json schema = SchemaMaker(seed).Root();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", schema.dump()));
    const auto grammar = Compile(Schema(schema.dump()), vocabulary->spellable());
    if (!grammar.ok()) continue;  // such as a reference that leads back with nothing in between
    ++compiled;
    TokenConstraint constraint(*grammar, vocabulary);
    for (int walk = 0; walk < 8; ++walk) {
      const std::string text = Walk(&constraint, &rng);
      const Json value = Json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text;
      ASSERT_TRUE(Validator(schema).Holds(schema, value)) << text;
    }
  }
  EXPECT_GT(compiled, 75);
}

TEST(WalkTest, AnyObjectIsAnObject) {
  const auto vocabulary = TestVocabulary();
  const auto grammar = Compile(AnyObject(), vocabulary->spellable());
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  TokenConstraint constraint(*grammar, vocabulary);
  std::mt19937_64 rng(5);
  for (int walk = 0; walk < 200; ++walk) {
    const std::string text = Walk(&constraint, &rng);
    const Json value = Json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
  }
}

// A mask is what the automaton says of each token, and a position is found again from the tokens alone.
TEST(WalkTest, MasksAgreeWithTheAutomatonAndPositionsWithReplay) {
  const auto vocabulary = TestVocabulary();
  const auto grammar = Compile(Schema(R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":10}},"required":["name"]})"),
                               vocabulary->spellable());
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  TokenConstraint constraint(*grammar, vocabulary), other(*grammar, vocabulary);
  std::mt19937_64 rng(8);
  TokenConstraint::Position position;
  std::vector<int32_t> tokens;
  std::string text;
  for (int step = 0; step < 60; ++step) {
    ASSERT_TRUE(constraint.MoveTo(tokens, &position).ok());
    const TokenMask* mask = *constraint.Mask(position);
    Automaton automaton(*grammar);
    Automaton::StateId at = Automaton::kStart;
    for (const char c : text) at = automaton.Next(at, static_cast<uint8_t>(c));
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      Automaton::StateId next = vocabulary->bytes(id).empty() ? Automaton::kDead : at;
      for (const char c : vocabulary->bytes(id)) next = automaton.Next(next, static_cast<uint8_t>(c));
      ASSERT_EQ(mask->Allows(id), next != Automaton::kDead) << text << " then token " << id;
      if (next != Automaton::kDead) allowed.push_back(id);
    }
    EXPECT_EQ(mask->may_end(), automaton.MayEnd(at));
    TokenConstraint::Position fresh;
    ASSERT_TRUE(other.MoveTo(tokens, &fresh).ok());
    const TokenMask* replayed = *other.Mask(fresh);
    for (int32_t id = 0; id < vocabulary->size(); ++id) ASSERT_EQ(mask->Allows(id), replayed->Allows(id));
    // EOS is let through exactly where the text may end; a token without text that ends nothing never is.
    std::vector<float> logits(static_cast<size_t>(vocabulary->size()), 1.0f);
    mask->Apply(logits, std::vector<int32_t>{kEos, allowed.empty() ? kEos : allowed[0]});
    EXPECT_EQ(logits[kEos] == 1.0f, mask->may_end());
    EXPECT_TRUE(std::isinf(logits[kSpecial]));
    if (allowed.empty()) return;
    tokens.push_back(allowed[rng() % allowed.size()]);
    text += std::string(vocabulary->bytes(tokens.back()));
  }
  tokens.push_back(kSpecial);
  EXPECT_EQ(constraint.MoveTo(tokens, &position).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::constraint
