// What a schema says of strings, numbers and arrays.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "constraint/number_range.h"
#include "constraint/regex.h"
#include "constraint/schema_compiler.h"

namespace baton::constraint {
namespace {

constexpr int kMaxCount = 10'000;  // of items or characters that a schema asks for

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

}  // namespace

int SchemaCompiler::Count(const Json& schema, const char* keyword, const std::string& path) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return -1;
  const bool whole = it->is_number() && it->get<double>() == std::floor(it->get<double>());
  if (!whole || it->get<double>() < 0 || it->get<double>() > kMaxCount) {
    FailKeyword(path, keyword, absl::StrCat("must be an integer from 0 to ", kMaxCount));
    return -2;
  }
  return static_cast<int>(it->get<double>());
}

State SchemaCompiler::String(State from, const Json& schema, const std::string& path) {
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
    const auto it =
        schema["format"].is_string() ? Formats().find(schema["format"].get<std::string>()) : Formats().end();
    const bool date_time = schema["format"] == "date-time";
    if (it == Formats().end() && !date_time) {
      return FailKeyword(
          path, "format",
          "is not supported with this value; date, time, date-time, uuid, ipv4, email, hostname, uri are");
    }
    if (date_time) at = builder_->Literal(AddRegex(builder_, at, Formats().at("date")), "T");
    at = AddRegex(builder_, at, date_time ? Formats().at("time") : it->second);
  } else {
    if (max >= 0 && max < min) return FailKeyword(path, "maxLength", "is below minLength");
    at = Characters(at, std::max(min, 0), max);
  }
  return builder_->Literal(at, "\"");
}

State SchemaCompiler::FailBehind(const std::string& path, absl::string_view keyword) {
  builder_->Locate(absl::StrCat(path, "/", keyword));
  return 0;
}

State SchemaCompiler::Characters(State from, int min, int max) {
  for (int i = 0; i < min && builder_->ok(); ++i) from = json_.Character(from);
  const State end = builder_->NewState();
  builder_->Empty(from, end);
  if (max < 0) builder_->Empty(json_.Character(end), end);
  for (int i = min; i < max && builder_->ok(); ++i) {
    from = json_.Character(from);
    builder_->Empty(from, end);
  }
  return end;
}

State SchemaCompiler::Number(State from, const Json& schema, bool integer, const std::string& path) {
  NumberBounds bounds;
  if (integer) bounds.form.fraction_digits = 0;
  const auto multiple = schema.find("multipleOf");
  if (multiple != schema.end()) {
    if (!multiple->is_number() || !(multiple->get<double>() > 0)) {
      return FailKeyword(path, "multipleOf", "must be a number above 0");
    }
    const std::optional<NumberForm> form = MultiplesOf(multiple->get<double>(), integer);
    if (!form.has_value()) return FailKeyword(path, "multipleOf", "needs more than 15 digits");
    if (!HasFewRemainders(*form)) {
      return FailKeyword(path, "multipleOf", absl::StrCat("is supported up to ", kMaxRemainders, ", times factors of 2 and 5"));
    }
    bounds.form = *form;
  }
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
  if (bounds.low.has_value() || bounds.high.has_value() || multiple != schema.end()) {
    if (bounds.low.has_value() && bounds.high.has_value() && low > high) {
      return Fail(path, "the smallest number allowed is above the largest");
    }
    return AddNumberRange(builder_, from, bounds);
  }
  return integer ? json_.Integer(from) : json_.Number(from);
}

State SchemaCompiler::Array(State from, const Json& schema, const std::string& path, int depth) {
  const int min = std::max(0, Count(schema, "minItems", path));
  const int max = Count(schema, "maxItems", path);
  const Json* items = schema.contains("items") ? &schema["items"] : nullptr;
  const Json* prefix = schema.contains("prefixItems") ? &schema["prefixItems"] : nullptr;
  if (items != nullptr && items->is_array())
    return FailKeyword(path, "items", "as a list is not supported; use prefixItems");
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
    at = i < num_prefix
             ? Value(begin, (*prefix)[static_cast<size_t>(i)], absl::StrCat(path, "/prefixItems/", i), depth + 1)
             : builder_->Call(begin, *item);
  }
  return end;
}

}  // namespace baton::constraint
