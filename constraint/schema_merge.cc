#include "constraint/schema_merge.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::constraint {
namespace {

constexpr uint64_t kMaxMultiple = uint64_t{1} << 31;  // so that two make no overflow

bool IsOneOf(absl::string_view word, std::initializer_list<absl::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

absl::Status Cannot(absl::string_view keyword, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", keyword, "\" of schemas that must hold together ", why));
}

absl::Status NothingInCommon(absl::string_view keyword) {
  return absl::FailedPreconditionError(Cannot(keyword, "has no value in common").message());
}

bool Contains(const Json& list, const Json& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

Json Types(const Json& type) { return type.is_array() ? type : Json::array({type}); }

Json CommonTypes(const Json& a, const Json& b) {
  Json out = Json::array();
  for (const Json& type : Types(a)) {
    if (Contains(Types(b), type) || (type == "integer" && Contains(Types(b), "number"))) out.push_back(type);
  }
  for (const Json& type : Types(b)) {
    if (type == "integer" && Contains(Types(a), "number") && !Contains(out, type)) out.push_back(type);
  }
  return out;
}

// A subschema that must hold with another of the same place.
Json Both(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  return Json{{"allOf", Json::array({a, b})}};
}

absl::Status MergeKeyword(const std::string& key, const Json& value, Json* mine) {
  if (*mine == value || IsAnnotation(key)) return absl::OkStatus();
  if (key == "type") {
    *mine = CommonTypes(*mine, value);
    return mine->empty() ? NothingInCommon(key) : absl::OkStatus();
  }
  if (key == "enum" && mine->is_array() && value.is_array()) {
    Json out = Json::array();
    for (const Json& one : *mine) {
      if (Contains(value, one)) out.push_back(one);
    }
    *mine = std::move(out);
    return mine->empty() ? NothingInCommon(key) : absl::OkStatus();
  }
  if (key == "required" && mine->is_array() && value.is_array()) {
    for (const Json& name : value) {
      if (!Contains(*mine, name)) mine->push_back(name);
    }
    return absl::OkStatus();
  }
  if ((key == "properties" || key == "patternProperties") && mine->is_object() && value.is_object()) {
    for (auto it = value.begin(); it != value.end(); ++it) {
      const auto old = mine->find(it.key());
      (*mine)[it.key()] = old == mine->end() ? it.value() : Both(*old, it.value());
    }
    return absl::OkStatus();
  }
  if (key == "items" || key == "additionalProperties") {
    *mine = *mine == false || value == false ? Json(false) : Both(*mine, value);
    return absl::OkStatus();
  }
  if (mine->is_number() && value.is_number()) {
    if (IsOneOf(key, {"minimum", "exclusiveMinimum", "minLength", "minItems"})) {
      if (*mine < value) *mine = value;
      return absl::OkStatus();
    }
    if (key == "multipleOf" && mine->is_number_unsigned() && value.is_number_unsigned()) {
      const uint64_t a = mine->get<uint64_t>(), b = value.get<uint64_t>();
      if (a == 0 || b == 0 || a > kMaxMultiple || b > kMaxMultiple) return Cannot(key, "is too large, or 0");
      *mine = std::lcm(a, b);
      return absl::OkStatus();
    }
    if (IsOneOf(key, {"maximum", "exclusiveMaximum", "maxLength", "maxItems"})) {
      if (value < *mine) *mine = value;
      return absl::OkStatus();
    }
  }
  return Cannot(key, "cannot be put together");
}

// additionalProperties speaks of what its own schema's properties and patterns do not name.
absl::Status CheckClosed(const Json& closed, const Json& other) {
  const auto additional = closed.find("additionalProperties");
  if (additional == closed.end() || *additional == true) return absl::OkStatus();
  if (other.contains("patternProperties") && other["patternProperties"] != closed.value("patternProperties", Json())) {
    return Cannot("additionalProperties", "leaves out what the other's patternProperties speak of");
  }
  const auto properties = other.find("properties");
  if (properties == other.end() || !properties->is_object()) return absl::OkStatus();
  const auto own = closed.find("properties");
  for (auto it = properties->begin(); it != properties->end(); ++it) {
    if (own == closed.end() || !own->is_object() || !own->contains(it.key())) {
      return Cannot("additionalProperties", "leaves out properties that the other names");
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsAnnotation(absl::string_view keyword) {
  return absl::StartsWith(keyword, "x-") ||
         IsOneOf(keyword, {"title", "description", "default", "example", "examples", "deprecated", "readOnly",
                           "writeOnly", "$schema", "$id", "$comment", "$defs", "definitions", "strict", "discriminator",
                           "contentMediaType", "contentEncoding"});
}

absl::Status MergeSchemas(const Json& from, Json* into) {
  if (absl::Status s = CheckClosed(from, *into); !s.ok()) return s;
  if (absl::Status s = CheckClosed(*into, from); !s.ok()) return s;
  for (auto it = from.begin(); it != from.end(); ++it) {
    const auto mine = into->find(it.key());
    if (mine == into->end()) {
      (*into)[it.key()] = it.value();
    } else if (absl::Status s = MergeKeyword(it.key(), it.value(), &*mine); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::constraint
