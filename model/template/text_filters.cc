// Filters that make text or a number of one value.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/template/filters.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

absl::StatusOr<BoundArgs> Bind(const FilterCall& call, std::initializer_list<const char*> params) {
  return BoundArgs::Bind(absl::StrCat("the filter ", call.name), call.args, params);
}

absl::StatusOr<Value> CaseFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, call.operand));
  JINJA_RETURN_IF_ERROR(call.budget.StepBytes(text.size() * 4));
  if (call.name == "upper") return MakeString(call.budget, Upper(text));
  if (call.name == "lower") return MakeString(call.budget, Lower(text));
  if (call.name == "title") return MakeString(call.budget, TitleFilter(text));
  return MakeString(call.budget, Capitalize(text));
}

absl::StatusOr<Value> TextFilter(const FilterCall& call) {  // string, safe
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(std::string text, Str(call.budget, call.operand));
  return MakeString(call.budget, std::move(text));
}

absl::StatusOr<Value> EscapeFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, call.operand));
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return MakeString(call.budget, std::move(out));
}

absl::StatusOr<Value> TrimFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"chars"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> chars, bound.String(0));
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, call.operand));
  if (!chars.has_value()) return MakeString(call.budget, std::string(Strip(text, std::nullopt, Side::kBoth)));
  JINJA_RETURN_IF_ERROR(call.budget.StepBytes(text.size() * std::min<size_t>(chars->size() + 1, 64)));
  return MakeString(call.budget, std::string(Strip(text, absl::string_view(*chars), Side::kBoth)));
}

absl::StatusOr<Value> ReplaceFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"old", "new", "count"}));
  if (bound.Get(0) == nullptr || bound.Get(1) == nullptr) return TypeError("the filter replace needs old and new");
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, call.operand));
  JINJA_ASSIGN_OR_RETURN(const std::string from, Str(call.budget, *bound.Get(0)));
  JINJA_ASSIGN_OR_RETURN(const std::string to, Str(call.budget, *bound.Get(1)));
  std::optional<int64_t> count;
  if (bound.Get(2) != nullptr && !bound.Get(2)->is_none()) {
    JINJA_ASSIGN_OR_RETURN(count, bound.Integer(2));
  }
  JINJA_ASSIGN_OR_RETURN(std::string out, Replace(call.budget, text, from, to, count.value_or(-1)));
  return MakeString(call.budget, std::move(out));
}

absl::StatusOr<Value> IndentFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"width", "first", "blank"}));
  std::string indent(4, ' ');
  if (bound.Get(0) != nullptr && bound.Get(0)->is_string()) {
    indent = bound.Get(0)->as_string();
  } else {
    JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> width, bound.Integer(0));
    const int64_t size = std::max<int64_t>(width.value_or(4), 0);
    JINJA_RETURN_IF_ERROR(call.budget.CheckString(static_cast<size_t>(size)));
    indent.assign(static_cast<size_t>(size), ' ');
  }
  if (call.operand.is_undefined()) return UndefinedError(call.operand);
  if (!call.operand.is_string())
    return TypeError(absl::StrCat("the filter indent needs a str, not ", call.operand.type_name()));
  const bool blank = bound.Truth(2, false);
  const std::string text = call.operand.as_string() + "\n";  // so that a final line end makes a last, empty line
  JINJA_RETURN_IF_ERROR(call.budget.StepBytes(text.size() * 4));
  std::string out;
  bool is_first = true;
  for (const absl::string_view line : SplitLines(text)) {
    if (!is_first) out += '\n';
    if (is_first ? bound.Truth(1, false) : (blank || !line.empty())) out += indent;
    is_first = false;
    out.append(line.data(), line.size());
    JINJA_RETURN_IF_ERROR(call.budget.CheckString(out.size()));
  }
  return MakeString(call.budget, std::move(out));
}

absl::StatusOr<Value> ToJsonFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.Truth(0, false);
  style.sort_keys = bound.Truth(3, false);
  const Value* indent = bound.Get(1);
  if (indent != nullptr && !indent->is_none()) {
    if (indent->is_string()) {
      style.indent = indent->as_string();
    } else {
      JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> width, bound.Integer(1));
      const int64_t size = std::max<int64_t>(*width, 0);
      JINJA_RETURN_IF_ERROR(call.budget.CheckString(static_cast<size_t>(size)));
      style.indent = std::string(static_cast<size_t>(size), ' ');
    }
    style.item_separator.resize(1);  // no space before a line end
  }
  if (const Value* separators = bound.Get(2); separators != nullptr && !separators->is_none()) {
    JINJA_ASSIGN_OR_RETURN(const std::vector<Value> both, Elements(call.budget, *separators));
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      return TypeError("the filter tojson needs two strs as separators");
    }
    style.item_separator = both[0].as_string();
    style.key_separator = both[1].as_string();
  }
  JINJA_ASSIGN_OR_RETURN(std::string text, ToJson(call.budget, call.operand, style));
  return MakeString(call.budget, std::move(text));
}

absl::StatusOr<Value> IntFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"default", "base"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> base, bound.Integer(1));
  const Value otherwise = bound.Get(0) == nullptr ? Value(Int{0}) : *bound.Get(0);
  const Value& v = call.operand;
  std::optional<double> number;
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_bool() || v.is_int()) return Value(v.as_int());
  if (v.is_float()) number = v.as_float();
  if (v.is_string()) {
    JINJA_RETURN_IF_ERROR(call.budget.StepBytes(v.as_string().size()));
    const int64_t radix = base.value_or(10);
    if (radix < 0 || radix == 1 || radix > 36) return otherwise;
    if (const std::optional<Int> exact = ParseInt(v.as_string(), static_cast<int>(radix))) return Value(*exact);
    number = ParseFloat(v.as_string());
  }
  if (!number.has_value() || !std::isfinite(*number) || std::abs(*number) >= 1e38) return otherwise;
  return Value(static_cast<Int>(*number));
}

absl::StatusOr<Value> FloatFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"default"}));
  const Value& v = call.operand;
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_number()) return Value(v.as_number());
  if (v.is_string()) {
    JINJA_RETURN_IF_ERROR(call.budget.StepBytes(v.as_string().size()));
    if (const std::optional<double> number = ParseFloat(v.as_string())) return Value(*number);
  }
  return bound.Get(0) == nullptr ? Value(0.0) : *bound.Get(0);
}

absl::StatusOr<Value> AbsFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  const Value& v = call.operand;
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_float()) return Value(std::abs(v.as_float()));
  if (!v.is_number()) return TypeError(absl::StrCat("bad operand type for abs(): '", v.type_name(), "'"));
  if (v.as_int() >= 0) return Value(v.as_int());
  return Arithmetic(call.budget, Op::kSub, Value(Int{0}), v);
}

absl::StatusOr<Value> RoundFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"precision", "method"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> precision, bound.Integer(0));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> method, bound.String(1));
  const Value& v = call.operand;
  if (v.is_undefined()) return UndefinedError(v);
  if (!v.is_number()) return TypeError(absl::StrCat("the filter round needs a number, not ", v.type_name()));
  const int64_t digits = precision.value_or(0);
  if (digits < 0 || digits > 300) return TypeError("the filter round needs a precision of 0 to 300");
  const std::string how = method.value_or("common");
  if (how == "ceil" || how == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double scaled = v.as_number() * scale;
    return Value((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (how != "common") return TypeError("method must be common, ceil or floor");
  if (!v.is_float() || !std::isfinite(v.as_float())) return v;
  // Decimal text is exact to half a unit, ties to even, which is how Python rounds.
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), v.as_float());
  return Value(ParseFloat(buffer).value_or(v.as_float()));
}

absl::StatusOr<Value> WordCountFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, call.operand));
  JINJA_RETURN_IF_ERROR(call.budget.StepBytes(text.size() * 4));
  Int words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) {
    const bool is_word = IsAlphanumeric(CodePointAt(text, at)) || text[at] == '_';
    words += is_word && !in_word;
    in_word = is_word;
  }
  return Value(words);
}

}  // namespace

Filter FindTextFilter(absl::string_view name) {
  static constexpr std::pair<const char*, Filter> kFilters[] = {
      {"abs", AbsFilter},     {"capitalize", CaseFilter},     {"e", EscapeFilter},      {"escape", EscapeFilter},
      {"float", FloatFilter}, {"forceescape", EscapeFilter},  {"indent", IndentFilter}, {"int", IntFilter},
      {"lower", CaseFilter},  {"replace", ReplaceFilter},     {"round", RoundFilter},   {"safe", TextFilter},
      {"string", TextFilter}, {"title", CaseFilter},          {"tojson", ToJsonFilter}, {"trim", TrimFilter},
      {"upper", CaseFilter},  {"wordcount", WordCountFilter},
  };
  for (const auto& [other, filter] : kFilters) {
    if (name == other) return filter;
  }
  return nullptr;
}

}  // namespace baton::model::jinja
