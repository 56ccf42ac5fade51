#include "constraint/schema_compiler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "constraint/json_schema.h"

namespace baton::constraint {
namespace {

constexpr int64_t kMaxMergeWork = 2'000'000;  // values copied and compared while schemas are put together

// What speaks of values of one type only, and of which.
const std::map<std::string, std::string>& KeywordTypes() {
  static const auto* const kTypes = new std::map<std::string, std::string>{
      {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
      {"patternProperties", "object"},                          {"multipleOf", "number"},
      {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
      {"maxItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
      {"pattern", "string"},    {"format", "string"},           {"minimum", "number"},
      {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
  };
  return *kTypes;
}

int64_t NumValues(const Json& json) {
  int64_t count = 1;
  if (json.is_structured()) {
    for (const Json& one : json) count += NumValues(one);
  }
  return count;
}

int64_t MergeWork(const Json& a, const Json& b) {
  int64_t work = 100 + NumValues(a);
  for (const char* list : {"properties", "patternProperties", "enum", "required"}) {
    if (a.contains(list) && b.contains(list)) work += static_cast<int64_t>(a[list].size() * b[list].size());
  }
  return work;
}

bool HasType(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "number") return value.is_number();
  return value.is_number_integer() || (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
}

}  // namespace

Rule SchemaCompiler::Run() {
  const Rule top = builder_->NewRule();
  rules_.emplace("", top);
  queue_.push_back({"", top});
  // Rules for references are made when they are first met, and filled one after the other.
  for (size_t i = 0; i < queue_.size() && builder_->ok(); ++i) {
    const auto [path, rule] = queue_[i];
    builder_->End(Value(builder_->begin(rule), *Resolve(path), path, 0));
  }
  return top;
}

State SchemaCompiler::Fail(const std::string& path, absl::string_view what) {
  builder_->Fail(absl::InvalidArgumentError(absl::StrCat(path.empty() ? "/" : path, ": ", what)));
  return 0;
}

State SchemaCompiler::FailKeyword(const std::string& path, absl::string_view keyword, absl::string_view what) {
  return Fail(path, absl::StrCat("\"", keyword, "\" ", what));
}

State SchemaCompiler::FailMerge(const std::string& path, const absl::Status& status) {
  return Fail(path, absl::string_view(status.message()));
}

const Json* SchemaCompiler::Resolve(const std::string& pointer) const {
  const Json* at = &root_;
  if (pointer.empty()) return at;
  const std::vector<std::string> parts = absl::StrSplit(pointer.substr(1), '/');
  for (const std::string& part : parts) {
    const std::string key = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    if (at->is_object()) {
      const auto it = at->find(key);
      if (it == at->end()) return nullptr;
      at = &*it;
    } else if (at->is_array() && key.size() <= 6 && !key.empty() &&
               std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
               std::stoul(key) < at->size()) {
      at = &(*at)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return at;
}

std::optional<std::string> SchemaCompiler::Target(const Json& ref, const std::string& path) {
  const bool local = ref.is_string() && (ref == "#" || ref.get_ref<const std::string&>().rfind("#/", 0) == 0);
  const std::string pointer = local ? ref.get<std::string>().substr(1) : "";
  if (!local) {
    FailKeyword(path, "$ref", "must be # or begin with #/: only references within the schema are followed");
  } else if (Resolve(pointer) == nullptr) {
    FailKeyword(path, "$ref", "names a place that the schema does not have");
  } else {
    return pointer;
  }
  return std::nullopt;
}

State SchemaCompiler::CallTarget(State from, const std::string& pointer) {
  const auto [it, inserted] = rules_.try_emplace(pointer, 0);
  if (inserted) {
    it->second = builder_->NewRule();
    queue_.push_back({pointer, it->second});
  }
  return builder_->Call(from, it->second);
}

bool SchemaCompiler::Charge(const Json& copied, const std::string& path) {
  merge_work_ += NumValues(copied);
  if (merge_work_ > kMaxMergeWork) Fail(path, "schemas need too many steps to be put together");
  return builder_->ok();
}

bool SchemaCompiler::Flatten(const Json& schema, const std::string& path, int depth, Json* into) {
  merge_work_ += MergeWork(schema, *into);
  if (merge_work_ > kMaxMergeWork || depth > kMaxSchemaDepth) {
    Fail(path, "allOf and $ref need too many steps to be put together");
    return false;
  }
  if (schema == true) return true;
  if (!schema.is_object()) {
    Fail(path, schema == false ? "false allows nothing" : "must be an object, true or false");
    return false;
  }
  Json own = Json::object();
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    if (it.key() != "$ref" && it.key() != "allOf" && !IsAnnotation(it.key())) own[it.key()] = it.value();
  }
  if (absl::Status s = MergeSchemas(own, into); !s.ok()) {
    FailMerge(path, s);
    return false;
  }
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    const std::optional<std::string> target = Target(*ref, path);
    if (!target.has_value() || !Flatten(*Resolve(*target), *target, depth + 1, into)) return false;
  }
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    if (!all->is_array() || all->empty()) {
      FailKeyword(path, "allOf", "must be a list that is not empty");
      return false;
    }
    for (size_t i = 0; i < all->size(); ++i) {
      if (!Flatten((*all)[i], absl::StrCat(path, "/allOf/", i), depth + 1, into)) return false;
    }
  }
  return true;
}

State SchemaCompiler::Value(State from, const Json& schema, const std::string& path, int depth) {
  if (!builder_->ok()) return from;
  if (depth > kMaxSchemaDepth) return Fail(path, absl::StrCat("schemas nest deeper than ", kMaxSchemaDepth));
  if (schema == true) return json_.Value(from);
  if (schema == false) return Fail(path, "false allows nothing");
  if (!schema.is_object()) return Fail(path, "must be an object, true or false");
  std::vector<std::string> keywords;
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    if (!IsAnnotation(it.key())) keywords.push_back(it.key());
  }
  if (keywords.empty()) return json_.Value(from);
  if (schema.contains("$ref") && keywords.size() == 1) {
    const std::optional<std::string> target = Target(schema["$ref"], path);
    return target.has_value() ? CallTarget(from, *target) : 0;
  }
  if (schema.contains("allOf") && keywords.size() == 1 && schema["allOf"].is_array() && schema["allOf"].size() == 1) {
    return Value(from, schema["allOf"][0], path + "/allOf/0", depth + 1);
  }
  if (schema.contains("$ref") || schema.contains("allOf")) {
    Json merged = Json::object();
    if (!Flatten(schema, path, 0, &merged)) return 0;
    return Value(from, merged, path, depth + 1);
  }
  for (const char* some : {"anyOf", "oneOf"}) {
    if (schema.contains(some)) return Some(from, schema, some, path, depth);
  }
  if (schema.contains("enum") || schema.contains("const")) return Literals(from, schema, keywords, path);
  for (const std::string& keyword : keywords) {
    if (keyword != "type" && KeywordTypes().count(keyword) == 0) {
      return FailKeyword(path, keyword, "is not supported");
    }
  }
  return Typed(from, schema, keywords, path, depth);
}

State SchemaCompiler::Some(State from, const Json& schema, const char* keyword, const std::string& path, int depth) {
  const Json& list = schema[keyword];
  if (!list.is_array() || list.empty()) return FailKeyword(path, keyword, "must be a list that is not empty");
  Json rest = Json::object();
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    if (it.key() != keyword && !IsAnnotation(it.key())) rest[it.key()] = it.value();
  }
  const State end = builder_->NewState();
  for (size_t i = 0; i < list.size() && builder_->ok(); ++i) {
    const std::string at = absl::StrCat(path, "/", keyword, "/", i);
    if (list[i] == false) continue;
    const State begin = builder_->NewState();
    builder_->Empty(from, begin);
    if (rest.empty()) {
      builder_->Empty(Value(begin, list[i], at, depth + 1), end);
      continue;
    }
    Json merged = rest;
    if (!Flatten(list[i], at, 0, &merged)) return 0;
    builder_->Empty(Value(begin, merged, at, depth + 1), end);
  }
  return end;
}

State SchemaCompiler::Literals(State from, const Json& schema, const std::vector<std::string>& keywords,
                               const std::string& path) {
  for (const std::string& keyword : keywords) {
    if (keyword != "enum" && keyword != "const" && keyword != "type") {
      return FailKeyword(path, keyword, "is not supported beside enum or const");
    }
  }
  Json values = Json::array();
  if (schema.contains("enum")) {
    values = schema["enum"];
    if (!values.is_array() || values.empty()) return FailKeyword(path, "enum", "must be a list that is not empty");
  } else {
    values.push_back(schema["const"]);
  }
  std::vector<std::string> types;
  if (schema.contains("type") && !ReadTypes(schema["type"], path, &types)) return 0;
  std::vector<std::string> texts;
  for (const Json& value : values) {
    if (schema.contains("const") && value != schema["const"]) continue;
    if (!types.empty() && std::none_of(types.begin(), types.end(), [&](const auto& t) { return HasType(value, t); })) {
      continue;
    }
    texts.push_back(value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  if (texts.empty()) return FailKeyword(path, schema.contains("enum") ? "enum" : "const", "has no value of its type");
  return builder_->OneOf(from, texts);
}

bool SchemaCompiler::ReadTypes(const Json& type, const std::string& path, std::vector<std::string>* types) {
  for (const Json& one : type.is_array() ? type : Json::array({type})) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    if (name != "null" && name != "boolean" && name != "string" && name != "object" && name != "array" &&
        name != "number" && name != "integer") {
      FailKeyword(path, "type", "must be null, boolean, string, object, array, number, integer, or a list of those");
      return false;
    }
    if (std::find(types->begin(), types->end(), name) == types->end()) types->push_back(name);
  }
  if (types->empty()) FailKeyword(path, "type", "is an empty list");
  return !types->empty();
}

State SchemaCompiler::Typed(State from, const Json& schema, const std::vector<std::string>& keywords,
                            const std::string& path, int depth) {
  std::vector<std::string> types;
  if (schema.contains("type")) {
    if (!ReadTypes(schema["type"], path, &types)) return 0;
  } else {
    // A schema that speaks of objects only is meant for objects, whatever else it would let through.
    for (const std::string& keyword : keywords) types.push_back(KeywordTypes().at(keyword));
    std::sort(types.begin(), types.end());
    types.erase(std::unique(types.begin(), types.end()), types.end());
  }
  const State end = builder_->NewState();
  for (const std::string& type : types) {
    if (!builder_->ok()) break;
    State begin = from;
    if (types.size() > 1) {
      begin = builder_->NewState();
      builder_->Empty(from, begin);
    }
    builder_->Empty(OfType(begin, type, schema, path, depth), end);
  }
  return end;
}

State SchemaCompiler::OfType(State from, const std::string& type, const Json& schema, const std::string& path,
                             int depth) {
  if (type == "null") return builder_->Literal(from, "null");
  if (type == "boolean") return json_.Boolean(from);
  if (type == "string") return String(from, schema, path);
  if (type == "object") return Object(from, schema, path, depth);
  if (type == "array") return Array(from, schema, path, depth);
  return Number(from, schema, type == "integer", path);
}

}  // namespace baton::constraint
