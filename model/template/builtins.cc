// How arguments are bound, the global functions, and the tests (`x is ...`).
#include <time.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/template/interpreter.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {

absl::StatusOr<BoundArgs> BoundArgs::Bind(absl::string_view function, const CallArgs& args,
                                          std::initializer_list<const char*> params) {
  BoundArgs bound;
  bound.function_ = std::string(function);
  bound.params_.assign(params.begin(), params.end());
  bound.values_.resize(params.size(), nullptr);
  if (args.positional.size() > params.size()) {
    return TypeError(absl::StrCat(function, " takes at most ", params.size(), " argument(s), ", args.positional.size(),
                                  " were given"));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound.values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < bound.params_.size() && name != bound.params_[i]) ++i;
    if (i == bound.params_.size()) return TypeError(absl::StrCat(function, " has no argument '", name, "'"));
    if (bound.values_[i] != nullptr) return TypeError(absl::StrCat(function, " got argument '", name, "' twice"));
    bound.values_[i] = &value;
  }
  return bound;
}

bool BoundArgs::Truth(size_t index, bool otherwise) const {
  return values_[index] == nullptr ? otherwise : jinja::Truth(*values_[index]);
}

absl::StatusOr<std::optional<std::string>> BoundArgs::String(size_t index) const {
  const Value* value = values_[index];
  if (value == nullptr || value->is_none()) return std::optional<std::string>();
  if (value->is_undefined()) return UndefinedError(*value);
  if (!value->is_string()) {
    return TypeError(absl::StrCat(function_, " needs a str as '", params_[index], "', not ", value->type_name()));
  }
  return std::optional<std::string>(value->as_string());
}

absl::StatusOr<std::optional<int64_t>> BoundArgs::Integer(size_t index) const {
  const Value* value = values_[index];
  if (value == nullptr) return std::optional<int64_t>();
  if (value->is_undefined()) return UndefinedError(*value);
  if (!value->is_int() && !value->is_bool()) {
    return TypeError(absl::StrCat(function_, " needs an int as '", params_[index], "', not ", value->type_name()));
  }
  constexpr Int kMin = std::numeric_limits<int64_t>::min();
  constexpr Int kMax = std::numeric_limits<int64_t>::max();
  return std::optional<int64_t>(static_cast<int64_t>(std::min(std::max(value->as_int(), kMin), kMax)));
}

namespace {

constexpr int64_t kMaxRange = 100000;  // as jinja2's sandbox has it

absl::StatusOr<Value> Range(Interpreter& interpreter, const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("range", args, {"start", "stop", "step"}));
  JINJA_ASSIGN_OR_RETURN(std::optional<int64_t> first, bound.Integer(0));
  JINJA_ASSIGN_OR_RETURN(std::optional<int64_t> second, bound.Integer(1));
  JINJA_ASSIGN_OR_RETURN(std::optional<int64_t> third, bound.Integer(2));
  if (!first.has_value()) return TypeError("range expected at least 1 argument, got 0");
  const Int start = second.has_value() ? *first : 0;
  const Int stop = second.has_value() ? *second : *first;
  const Int step = third.value_or(1);
  if (step == 0) return TypeError("range() arg 3 must not be zero");
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a range of ", IntText(count), " numbers; at most ", kMaxRange, " are allowed"));
  }
  JINJA_RETURN_IF_ERROR(interpreter.budget().Step(static_cast<int64_t>(count) / 8));
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.push_back(Value(start + i * step));
  return MakeList(interpreter.budget(), std::move(items));
}

// The items of dict(mapping or pairs, **named).
absl::StatusOr<std::vector<std::pair<Value, Value>>> DictItems(Interpreter& interpreter, const CallArgs& args) {
  Budget& budget = interpreter.budget();
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1) return TypeError("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_undefined()) return UndefinedError(source);
    if (source.is_dict()) {
      items = source.as_dict().items;
    } else {
      JINJA_ASSIGN_OR_RETURN(const std::vector<Value> pairs, Elements(budget, source));
      for (const Value& pair : pairs) {
        JINJA_ASSIGN_OR_RETURN(std::vector<Value> both, Elements(budget, pair));
        if (both.size() != 2) return TypeError("dict needs pairs of key and value");
        items.emplace_back(std::move(both[0]), std::move(both[1]));
      }
    }
  }
  for (const auto& [name, value] : args.named) items.emplace_back(Value(name), value);
  JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(items.size())));
  return items;
}

absl::StatusOr<Value> NewNamespace(Interpreter& interpreter, const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const auto items, DictItems(interpreter, args));
  JINJA_ASSIGN_OR_RETURN(Namespace * ns, interpreter.NewNamespace());
  for (const auto& [key, value] : items) {
    if (!key.is_string()) return TypeError("the attributes of a namespace need names");
    if (!key.as_string().empty() && key.as_string()[0] == '_') {
      return TypeError("a namespace cannot have attributes that start with _");
    }
    JINJA_RETURN_IF_ERROR(interpreter.budget().Alloc(sizeof(Value) + key.as_string().size()));
    ns->attributes[key.as_string()] = value;
  }
  return Value(ns);
}

absl::StatusOr<Value> StrftimeNow(Interpreter& interpreter, const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("strftime_now", args, {"format"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> format, bound.String(0));
  if (!format.has_value()) return TypeError("strftime_now needs a format");
  if (format->find('\0') != std::string::npos || format->size() > 256)
    return TypeError("strftime_now: unusable format");
  tm parts = absl::ToTM(*interpreter.now(), absl::UTCTimeZone());
  // Text that cannot be empty tells an empty result from one that does not fit.
  char buffer[4096];
  const size_t size = strftime(buffer, sizeof(buffer), (*format + ".").c_str(), &parts);
  if (size == 0) return TypeError("strftime_now: the result is too long");
  return MakeString(interpreter.budget(), std::string(buffer, size - 1));
}

}  // namespace

std::vector<std::string> GlobalNames(bool has_clock) {
  std::vector<std::string> names = {"range", "namespace", "dict", "raise_exception"};
  if (has_clock) names.push_back("strftime_now");
  return names;
}

absl::StatusOr<Value> CallGlobal(Interpreter& interpreter, const std::string& name, const CallArgs& args) {
  if (name == "range") return Range(interpreter, args);
  if (name == "namespace") return NewNamespace(interpreter, args);
  if (name == "strftime_now") return StrftimeNow(interpreter, args);
  if (name == "dict") {
    JINJA_ASSIGN_OR_RETURN(auto items, DictItems(interpreter, args));
    return MakeDict(interpreter.budget(), std::move(items));
  }
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("raise_exception", args, {"message"}));
  std::string message;
  if (bound.Get(0) != nullptr) {
    JINJA_ASSIGN_OR_RETURN(message, Str(interpreter.budget(), *bound.Get(0)));
  }
  return absl::InvalidArgumentError(absl::StrCat("the template refuses these messages: ", message.substr(0, 2000)));
}

namespace {

bool IsIterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() || v.is_dict() || v.is_loop();
}

// Tests that look only at the kind of a value; nullopt: another test.
std::optional<bool> KindTest(const std::string& name, const Value& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is_dict();
  if (name == "iterable") return IsIterable(v);
  // jinja2 asks for a length and for elements, and its Undefined has both.
  if (name == "sequence") return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is_int();
  if (name == "float") return v.is_float();
  if (name == "boolean") return v.is_bool();
  if (name == "true") return v.is_bool() && v.as_bool();
  if (name == "false") return v.is_bool() && !v.as_bool();
  if (name == "callable") return v.is_callable();
  if (name == "escaped") return false;
  return std::nullopt;
}

std::optional<bool> TextTest(const std::string& name, const std::string& text) {
  if (name == "lower") return Lower(text) == text && Upper(text) != text;
  if (name == "upper") return Upper(text) == text && Lower(text) != text;
  return std::nullopt;
}

absl::StatusOr<bool> CompareTest(Interpreter& interpreter, const std::string& name, const Value& a, const Value& b) {
  Budget& budget = interpreter.budget();
  const auto is = [&](std::initializer_list<const char*> names) {
    for (const char* candidate : names) {
      if (name == candidate) return true;
    }
    return false;
  };
  if (is({"equalto", "eq", "=="})) return Equal(budget, a, b);
  if (name == "sameas") {
    if (a.is_bool() != b.is_bool() || a.is_float() != b.is_float()) return false;
    return Equal(budget, a, b);
  }
  if (name == "in") return Contains(budget, b, a);
  if (is({"lessthan", "lt", "<"})) return Less(budget, a, b);
  if (is({"greaterthan", "gt", ">"})) return Less(budget, b, a);
  JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, a, b));
  if (is({"ne", "!="})) return !same;
  if (same) return true;
  return is({"le", "<="}) ? Less(budget, a, b) : Less(budget, b, a);
}

}  // namespace

absl::StatusOr<bool> Interpreter::CallTest(const std::string& name, const Value& operand, const CallArgs& args) {
  JINJA_RETURN_IF_ERROR(budget_.Step());
  if (const std::optional<bool> result = KindTest(name, operand)) {
    if (!args.positional.empty() || !args.named.empty())
      return TypeError(absl::StrCat("the test ", name, " takes no argument"));
    return *result;
  }
  if (name == "lower" || name == "upper") {
    JINJA_ASSIGN_OR_RETURN(const std::string text, Str(budget_, operand));
    return *TextTest(name, text);
  }
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const bool by = name == "divisibleby";
    if (by && args.positional.size() != 1) return TypeError("divisibleby needs one argument");
    const Value divisor = by ? args.positional[0] : Value(Int{2});
    JINJA_ASSIGN_OR_RETURN(const Value rest, Arithmetic(budget_, Op::kMod, operand, divisor));
    return Equal(budget_, rest, Value(Int{name == "odd" ? 1 : 0}));
  }
  static constexpr const char* kComparisons[] = {"equalto", "eq", "==",          "sameas", "in", "lessthan",
                                                 "lt",      "<",  "greaterthan", "gt",     ">",  "ne",
                                                 "!=",      "le", "<=",          "ge",     ">="};
  for (const char* comparison : kComparisons) {
    if (name != comparison) continue;
    if (args.positional.size() != 1 || !args.named.empty())
      return TypeError(absl::StrCat("the test ", name, " needs one argument"));
    return CompareTest(*this, name, operand, args.positional[0]);
  }
  if (name == "filter" || name == "test") {
    return absl::UnimplementedError(absl::StrCat("the test ", name, " is not supported in chat templates"));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no test named '", name, "'"));
}

}  // namespace baton::model::jinja
