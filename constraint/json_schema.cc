#include "constraint/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/bounded_json.h"
#include "constraint/json_grammar.h"
#include "constraint/key_complement.h"
#include "constraint/number_range.h"
#include "constraint/regex.h"
#include "constraint/schema_merge.h"

namespace baton::constraint {
namespace {

constexpr int64_t kMaxMergeWork = 2'000'000;  // values copied and compared while schemas are put together
constexpr int kMaxCount = 10'000;  // of items or characters that a schema asks for

// What speaks of values of one type only, and of which.
const std::map<std::string, std::string>& KeywordTypes() {
  static const auto* const kTypes = new std::map<std::string, std::string>{
      {"properties", "object"},  {"required", "object"},  {"additionalProperties", "object"},
      {"items", "array"},        {"prefixItems", "array"}, {"minItems", "array"}, {"maxItems", "array"},
      {"minLength", "string"},   {"maxLength", "string"}, {"pattern", "string"},  {"format", "string"},
      {"minimum", "number"},     {"maximum", "number"},   {"exclusiveMinimum", "number"},
      {"exclusiveMaximum", "number"},
  };
  return *kTypes;
}

const std::map<std::string, const char*>& Formats() {
  static const auto* const kFormats = new std::map<std::string, const char*>{
      {"date",
       "(1[0-9]|20)[0-9]{2}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
       "02-(0[1-9]|1[0-9]|2[0-8]))"},
      {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
      {"email", "[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\\.)+[A-Za-z]{2,}"},
      {"hostname", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"},
      {"uri", "https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,4})?(/[A-Za-z0-9_~.,/%=&+-]*)?"},
  };
  return *kFormats;
}

std::string Child(const std::string& path, absl::string_view key) {
  return absl::StrCat(path, "/", absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}}));
}

class Compiler {
 public:
  Compiler(Builder* builder, const Json& root) : builder_(builder), root_(root), json_(builder) {}

  void Run() {
    const Rule top = builder_->NewRule();
    rules_.emplace("", top);
    queue_.push_back({"", top});
    // Rules for references are made when they are first met, and filled one after the other.
    for (size_t i = 0; i < queue_.size() && builder_->ok(); ++i) {
      const auto [path, rule] = queue_[i];
      builder_->End(Value(builder_->begin(rule), *Resolve(path), path, 0));
    }
  }

 private:
  State Fail(const std::string& path, absl::string_view what) {
    builder_->Fail(absl::InvalidArgumentError(absl::StrCat(path.empty() ? "/" : path, ": ", what)));
    return 0;
  }
  State FailKeyword(const std::string& path, absl::string_view keyword, absl::string_view what) {
    return Fail(path, absl::StrCat("\"", keyword, "\" ", what));
  }
  State FailMerge(const std::string& path, const absl::Status& status) {
    return Fail(path, absl::string_view(status.message()));
  }

  // The schema at a JSON pointer; nullptr: none.
  const Json* Resolve(const std::string& pointer) const {
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

  // The pointer that a $ref means; nullopt and an error when there is none.
  std::optional<std::string> Target(const Json& ref, const std::string& path) {
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

  State CallTarget(State from, const std::string& pointer) {
    const auto [it, inserted] = rules_.try_emplace(pointer, 0);
    if (inserted) {
      it->second = builder_->NewRule();
      queue_.push_back({pointer, it->second});
    }
    return builder_->Call(from, it->second);
  }

  static int64_t NumValues(const Json& json) {
    int64_t count = 1;
    if (json.is_structured()) {
      for (const Json& one : json) count += NumValues(one);
    }
    return count;
  }
  static int64_t MergeWork(const Json& a, const Json& b) {
    int64_t work = 100 + NumValues(a);
    for (const char* list : {"properties", "enum", "required"}) {
      if (a.contains(list) && b.contains(list)) work += static_cast<int64_t>(a[list].size() * b[list].size());
    }
    return work;
  }

  // `schema` with $ref and allOf replaced by what they say; `into` holds both. False: failed.
  bool Flatten(const Json& schema, const std::string& path, int depth, Json* into) {
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

  State Value(State from, const Json& schema, const std::string& path, int depth) {
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

  // anyOf; the keywords beside it hold for each.
  State Some(State from, const Json& schema, const char* keyword, const std::string& path, int depth) {
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

  static bool HasType(const Json& value, const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "number") return value.is_number();
    return value.is_number_integer() || (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  }

  State Literals(State from, const Json& schema, const std::vector<std::string>& keywords, const std::string& path) {
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

  bool ReadTypes(const Json& type, const std::string& path, std::vector<std::string>* types) {
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

  State Typed(State from, const Json& schema, const std::vector<std::string>& keywords, const std::string& path,
              int depth) {
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

  State OfType(State from, const std::string& type, const Json& schema, const std::string& path, int depth) {
    if (type == "null") return builder_->Literal(from, "null");
    if (type == "boolean") return json_.Boolean(from);
    if (type == "string") return String(from, schema, path);
    if (type == "object") return Object(from, schema, path, depth);
    if (type == "array") return Array(from, schema, path, depth);
    return Number(from, schema, type == "integer", path);
  }

  // A number of things; -1: absent; -2 and an error: no such number.
  int Count(const Json& schema, const char* keyword, const std::string& path) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) return -1;
    const bool whole = it->is_number() && it->get<double>() == std::floor(it->get<double>());
    if (!whole || it->get<double>() < 0 || it->get<double>() > kMaxCount) {
      FailKeyword(path, keyword, absl::StrCat("must be an integer from 0 to ", kMaxCount));
      return -2;
    }
    return static_cast<int>(it->get<double>());
  }

  State String(State from, const Json& schema, const std::string& path) {
    const int min = Count(schema, "minLength", path), max = Count(schema, "maxLength", path);
    const bool counted = min > 0 || max >= 0;
    const bool pattern = schema.contains("pattern"), format = schema.contains("format");
    if (pattern + format + counted > 1) {
      return Fail(path, "of \"pattern\", \"format\" and lengths only one is supported at a time");
    }
    if (!pattern && !format && !counted) return json_.String(from);
    State at = builder_->Literal(from, "\"");
    if (pattern) {
      if (!schema["pattern"].is_string()) return FailKeyword(path, "pattern", "must be a string");
      at = AddRegex(builder_, at, schema["pattern"].get_ref<const std::string&>(), {.whole = false, .json = true});
      if (!builder_->ok()) return FailBehind(path, "pattern");
    } else if (format) {
      const auto it = schema["format"].is_string() ? Formats().find(schema["format"].get<std::string>()) : Formats().end();
      const bool date_time = schema["format"] == "date-time";
      if (it == Formats().end() && !date_time) {
        return FailKeyword(path, "format",
                           "is not supported with this value; date, time, date-time, uuid, ipv4, email, hostname, uri are");
      }
      if (date_time) at = builder_->Literal(AddRegex(builder_, at, Formats().at("date")), "T");
      at = AddRegex(builder_, at, date_time ? Formats().at("time") : it->second);
    } else {
      if (max >= 0 && max < min) return FailKeyword(path, "maxLength", "is below minLength");
      at = Repeat(at, std::max(min, 0), max, [&](State s) { return json_.Character(s); });
    }
    return builder_->Literal(at, "\"");
  }

  // The builder's error came from below; says where.
  State FailBehind(const std::string& path, absl::string_view keyword) {
    builder_->Locate(absl::StrCat(path, "/", keyword));
    return 0;
  }

  template <typename Body>
  State Repeat(State from, int min, int max, const Body& body) {
    for (int i = 0; i < min && builder_->ok(); ++i) from = body(from);
    const State end = builder_->NewState();
    builder_->Empty(from, end);
    if (max < 0) {
      builder_->Empty(body(end), end);
      return end;
    }
    for (int i = min; i < max && builder_->ok(); ++i) {
      from = body(from);
      builder_->Empty(from, end);
    }
    return end;
  }

  State Number(State from, const Json& schema, bool integer, const std::string& path) {
    NumberBounds bounds;
    bounds.integer = integer;
    double low = 0, high = 0;  // where there is a bound
    for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const auto it = schema.find(keyword);
      if (it == schema.end()) continue;
      const bool lower = absl::string_view(keyword).find("inimum") != absl::string_view::npos;
      const bool exclusive = keyword[0] == 'e';
      if (!it->is_number()) return FailKeyword(path, keyword, "must be a number");
      const double value = it->get<double>();
      // What is written is smaller in any case.
      if (lower ? value <= -1e15 : value >= 1e15) continue;
      std::optional<Decimal> decimal = ToDecimal(value);
      if (!decimal.has_value()) return FailKeyword(path, keyword, "needs more than 15 digits");
      decimal->exclusive = exclusive;
      std::optional<Decimal>& bound = lower ? bounds.low : bounds.high;
      const double other = lower ? low : high;
      if (bound.has_value() && (lower ? other > value : other < value)) continue;
      bound = std::move(decimal);
      (lower ? low : high) = value;
    }
    if (bounds.low.has_value() || bounds.high.has_value()) {
      if (bounds.low.has_value() && bounds.high.has_value() && low > high) {
        return Fail(path, "the smallest number allowed is above the largest");
      }
      return AddNumberRange(builder_, from, bounds);
    }
    return integer ? json_.Integer(from) : json_.Number(from);
  }

  State Array(State from, const Json& schema, const std::string& path, int depth) {
    const int min = std::max(0, Count(schema, "minItems", path));
    const int max = Count(schema, "maxItems", path);
    const Json* items = schema.contains("items") ? &schema["items"] : nullptr;
    const Json* prefix = schema.contains("prefixItems") ? &schema["prefixItems"] : nullptr;
    if (items != nullptr && items->is_array()) return FailKeyword(path, "items", "as a list is not supported; use prefixItems");
    if (prefix != nullptr && !prefix->is_array()) return FailKeyword(path, "prefixItems", "must be a list");
    if (max >= 0 && max < min) return FailKeyword(path, "maxItems", "is below minItems");
    const int num_prefix = prefix == nullptr ? 0 : static_cast<int>(prefix->size());
    // Behind a prefix more comes only where something says so.
    const bool more = items == nullptr ? num_prefix == 0 || min > num_prefix : *items != false;
    if (!more && min > num_prefix) return FailKeyword(path, "minItems", "is more than the items that are allowed");
    std::optional<Rule> item;
    if (more) {
      item = builder_->NewRule();
      const State begin = builder_->begin(*item);
      builder_->End(items == nullptr ? json_.Value(begin) : Value(begin, *items, path + "/items", depth + 1));
    }
    const State end = builder_->NewState();
    State at = json_.Space(builder_->Literal(from, "["));
    const int last = max >= 0 ? max : std::max(min, num_prefix);
    for (int i = 0; builder_->ok(); ++i) {
      if (i >= min) builder_->Empty(builder_->Literal(i == 0 ? at : json_.Space(at), "]"), end);
      const bool repeats = i >= last && max < 0 && more;
      if (i >= last && !repeats) break;
      if (i >= num_prefix && !more) break;
      State begin = i == 0 ? at : json_.Space(builder_->Literal(at, ","));
      if (repeats && i == 0) {
        at = builder_->Call(begin, *item);
        continue;
      }
      if (repeats) {
        // Back to where the one before ended.
        builder_->Call(begin, *item, at);
        break;
      }
      at = i < num_prefix ? Value(begin, (*prefix)[static_cast<size_t>(i)], absl::StrCat(path, "/prefixItems/", i), depth + 1)
                          : builder_->Call(begin, *item);
    }
    return end;
  }

  struct Property {
    std::string name;
    const Json* schema;
    bool required;
    std::string path;
  };

  // In the schema's order; required names that have no schema come last.
  bool ReadProperties(const Json& schema, const std::string& path, const Json* additional, std::vector<Property>* out) {
    static const auto* const kAny = new Json(true);
    Json required = Json::array();
    if (const auto it = schema.find("required"); it != schema.end()) required = *it;
    if (!required.is_array() || !std::all_of(required.begin(), required.end(), [](const Json& n) { return n.is_string(); })) {
      FailKeyword(path, "required", "must be a list of names");
      return false;
    }
    if (const auto it = schema.find("properties"); it != schema.end()) {
      if (!it->is_object()) {
        FailKeyword(path, "properties", "must be an object");
        return false;
      }
      std::set<std::string> needs;
      for (const Json& name : required) needs.insert(name.get<std::string>());
      for (auto p = it->begin(); p != it->end(); ++p) {
        const bool needed = needs.count(p.key()) > 0;
        if (!needed && p.value() == false) continue;
        out->push_back({p.key(), &p.value(), needed, Child(path + "/properties", p.key())});
      }
    }
    std::set<std::string> known;
    for (const Property& p : *out) known.insert(p.name);
    for (const Json& name : required) {
      if (!known.insert(name.get<std::string>()).second) continue;
      if (additional != nullptr && *additional == false) {
        FailKeyword(path, "required", "names a property that is not allowed");
        return false;
      }
      out->push_back({name.get<std::string>(), additional == nullptr ? kAny : additional, true, path + "/additionalProperties"});
    }
    return true;
  }

  State Object(State from, const Json& schema, const std::string& path, int depth) {
    const Json* additional = schema.contains("additionalProperties") ? &schema["additionalProperties"] : nullptr;
    std::vector<Property> properties;
    if (!ReadProperties(schema, path, additional, &properties)) return 0;
    const bool bare = !schema.contains("properties") && !schema.contains("required");
    if (bare && (additional == nullptr || *additional == true)) return json_.Object(from);
    const State end = builder_->NewState();
    const State open = json_.Space(builder_->Literal(from, "{"));
    // Two lines of states, one for before the first member and one for after, meet at each member.
    State first = open;
    std::optional<State> later;
    for (const Property& p : properties) {
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
    if (additional != nullptr && *additional != false) {
      const State member = builder_->NewState();
      builder_->Empty(first, member);
      if (later.has_value()) builder_->Empty(json_.Space(builder_->Literal(*later, ",")), member);
      std::vector<std::string> names;
      for (const Property& p : properties) names.push_back(p.name);
      const State key = builder_->Literal(AddOtherKey(builder_, member, names), ":");
      const State after = Value(json_.Space(key), *additional, path + "/additionalProperties", depth + 1);
      builder_->Empty(json_.Space(builder_->Literal(after, ",")), member);
      builder_->Empty(builder_->Literal(json_.Space(after), "}"), end);
    }
    builder_->Empty(builder_->Literal(first, "}"), end);
    if (later.has_value()) builder_->Empty(builder_->Literal(json_.Space(*later), "}"), end);
    return end;
  }

  Builder* const builder_;
  const Json& root_;
  JsonGrammar json_;
  std::map<std::string, Rule> rules_;  // by JSON pointer
  std::vector<std::pair<std::string, Rule>> queue_;
  int64_t merge_work_ = 0;
};

}  // namespace

void BuildSchema(Builder* builder, absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return builder->Fail(absl::InvalidArgumentError(
        absl::StrCat("a schema of ", schema.size(), " bytes; at most ", kMaxSchemaBytes)));
  }
  const absl::StatusOr<Json> root = ParseBoundedJson(schema);
  if (!root.ok()) return builder->Fail(root.status());
  Compiler(builder, *root).Run();
}

}  // namespace baton::constraint
