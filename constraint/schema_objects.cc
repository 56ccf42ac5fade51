// What a schema says of objects.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "constraint/key_complement.h"
#include "constraint/schema_compiler.h"
#include "constraint/schema_merge.h"

namespace baton::constraint {
namespace {

std::string Child(const std::string& path, absl::string_view key) {
  return absl::StrCat(path, "/", absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}}));
}

}  // namespace

const Json* SchemaCompiler::Together(Members* members, KeyPatterns::Set matching, const Json* own,
                                     const std::string& path) {
  static const auto* const kNothing = new Json(false);
  std::vector<const Json*> all;
  if (own != nullptr) all.push_back(own);
  for (size_t i = 0; i < members->of_patterns.size(); ++i) {
    if ((matching >> i & 1) != 0) all.push_back(members->of_patterns[i].schema);
  }
  if (std::any_of(all.begin(), all.end(), [](const Json* schema) { return *schema == false; })) return kNothing;
  if (all.size() == 1) return all[0];
  Json merged = Json::object(), list = Json::array();
  bool simple = true;
  for (const Json* schema : all) {
    if (!Charge(*schema, path)) return kNothing;
    list.push_back(*schema);
    simple = simple && (schema->is_boolean() || (schema->is_object() && !schema->contains("$ref") && !schema->contains("allOf")));
    if (!simple || schema->is_boolean()) continue;
    const absl::Status status = MergeSchemas(*schema, &merged);
    if (absl::IsFailedPrecondition(status)) return kNothing;
    simple = status.ok();
  }
  if (!simple) merged = Json{{"allOf", std::move(list)}};  // which is put together, or refused with its place, as others are
  return &members->merged.emplace_back(std::move(merged));
}

bool SchemaCompiler::ReadPatterns(const Json& schema, const std::string& path, Members* members) {
  const auto patterns = schema.find("patternProperties");
  if (patterns == schema.end()) return true;
  if (!patterns->is_object()) {
    FailKeyword(path, "patternProperties", "must be an object");
    return false;
  }
  for (auto it = patterns->begin(); it != patterns->end(); ++it) {
    const std::string at = Child(path + "/patternProperties", it.key());
    if (absl::Status s = members->patterns.Add(it.key()); !s.ok()) {
      Fail(at, absl::string_view(s.message()));
      return false;
    }
    members->of_patterns.push_back({it.key(), &it.value(), false, at});
  }
  return true;
}

bool SchemaCompiler::ReadProperties(const Json& schema, const std::string& path, Members* members) {
  static const auto* const kAny = new Json(true);
  Json required = Json::array();
  if (const auto it = schema.find("required"); it != schema.end()) required = *it;
  if (!required.is_array() ||
      !std::all_of(required.begin(), required.end(), [](const Json& n) { return n.is_string(); })) {
    FailKeyword(path, "required", "must be a list of names");
    return false;
  }
  std::set<std::string> needs, known;
  for (const Json& name : required) needs.insert(name.get<std::string>());
  // The value of `name` is also of the patterns that match it. False: failed.
  const auto add = [&](const std::string& name, const Json* own, const std::string& at) {
    const absl::StatusOr<KeyPatterns::Set> matching = members->patterns.Matching(name);
    if (!matching.ok()) {
      Fail(path + "/patternProperties", absl::string_view(matching.status().message()));
      return false;
    }
    const bool needed = needs.count(name) > 0;
    if (own == nullptr && *matching == 0) own = members->additional == nullptr ? kAny : members->additional;
    const Json* value = Together(members, *matching, own, at);
    members->names.push_back(name);
    if (needed || *value != false) members->properties.push_back({name, value, needed, at});
    return builder_->ok();
  };
  if (const auto it = schema.find("properties"); it != schema.end()) {
    if (!it->is_object()) {
      FailKeyword(path, "properties", "must be an object");
      return false;
    }
    for (auto p = it->begin(); p != it->end(); ++p) {
      known.insert(p.key());
      if (!add(p.key(), &p.value(), Child(path + "/properties", p.key()))) return false;
    }
  }
  for (const Json& name : required) {
    if (!known.insert(name.get<std::string>()).second) continue;
    if (!add(name.get<std::string>(), nullptr, path + "/additionalProperties")) return false;
    if (*members->properties.back().schema != false) continue;
    FailKeyword(path, "required", "names a property that is not allowed");
    return false;
  }
  return true;
}

std::vector<SchemaCompiler::OtherMembers> SchemaCompiler::OtherKeys(State from, const std::string& path,
                                                                    Members* members) {
  const Json* additional = members->additional;
  const bool open = additional != nullptr && *additional != false;
  if (members->of_patterns.empty()) {
    if (!open) return {};
    return {OtherMembers{AddOtherKey(builder_, from, members->names), additional, path + "/additionalProperties"}};
  }
  std::vector<OtherMembers> out;
  for (const auto& [matching, end] : members->patterns.AddOtherKeys(builder_, from, members->names)) {
    if (matching == 0) {
      if (open) out.push_back({end, additional, path + "/additionalProperties"});
      continue;
    }
    const Json* value = Together(members, matching, nullptr, path + "/patternProperties");
    if (*value == false) continue;
    std::string at = path + "/patternProperties";
    for (const Property& pattern : members->of_patterns) {
      if (value == pattern.schema) at = pattern.path;
    }
    out.push_back({end, value, at});
  }
  if (!builder_->ok()) FailBehind(path, "patternProperties");
  return out;
}

State SchemaCompiler::Object(State from, const Json& schema, const std::string& path, int depth) {
  Members members;
  if (const auto it = schema.find("additionalProperties"); it != schema.end()) members.additional = &*it;
  if (!ReadPatterns(schema, path, &members) || !ReadProperties(schema, path, &members)) return 0;
  const bool bare =
      !schema.contains("properties") && !schema.contains("required") && !schema.contains("patternProperties");
  if (bare && (members.additional == nullptr || *members.additional == true)) return json_.Object(from);
  const State end = builder_->NewState();
  // Two lines of states, one for before the first member and one for after, meet at each member.
  State first = json_.Space(builder_->Literal(from, "{"));
  std::optional<State> later;
  for (const Property& p : members.properties) {
    const State member = builder_->NewState();
    builder_->Empty(first, member);
    if (later.has_value()) builder_->Empty(json_.Space(builder_->Literal(*later, ",")), member);
    const std::string key = Json(p.name).dump(-1, ' ', false, Json::error_handler_t::replace);
    const State after = Value(json_.Space(builder_->Literal(member, key + ":")), *p.schema, p.path, depth + 1);
    if (!builder_->ok()) return 0;
    if (!p.required && later.has_value()) builder_->Empty(*later, after);
    if (p.required) first = builder_->NewState();  // nothing leads there any more
    later = after;
  }
  const State member = builder_->NewState();
  const std::vector<OtherMembers> others = OtherKeys(member, path, &members);
  if (!others.empty()) {
    builder_->Empty(first, member);
    if (later.has_value()) builder_->Empty(json_.Space(builder_->Literal(*later, ",")), member);
  }
  for (const OtherMembers& other : others) {
    const State key = builder_->Literal(other.key_end, ":");
    const State after = Value(json_.Space(key), *other.schema, other.path, depth + 1);
    builder_->Empty(json_.Space(builder_->Literal(after, ",")), member);
    builder_->Empty(builder_->Literal(json_.Space(after), "}"), end);
  }
  builder_->Empty(builder_->Literal(first, "}"), end);
  if (later.has_value()) builder_->Empty(builder_->Literal(json_.Space(*later), "}"), end);
  return end;
}

}  // namespace baton::constraint
