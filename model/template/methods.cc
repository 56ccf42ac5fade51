// Methods of strings, lists, dicts and loops. Those that would change their object are refused, as in jinja2's
// immutable sandbox.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/template/interpreter.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"
#include "utf8proc.h"

namespace baton::model::jinja {
namespace {

constexpr const char* kStringMethods[] = {
    "capitalize",   "count",        "endswith", "find",     "format",     "index",  "isalnum", "isalpha",
    "isdigit",      "islower",      "isspace",  "isupper",  "join",       "lower",  "lstrip",  "partition",
    "removeprefix", "removesuffix", "replace",  "rfind",    "rpartition", "rsplit", "rstrip",  "split",
    "splitlines",   "startswith",   "strip",    "swapcase", "title",      "upper",  "zfill"};
constexpr const char* kDictMethods[] = {"clear", "copy",    "get",        "items",  "keys",
                                        "pop",   "popitem", "setdefault", "update", "values"};
constexpr const char* kListMethods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                        "insert", "pop",   "remove", "reverse", "sort"};
constexpr const char* kTupleMethods[] = {"count", "index"};
constexpr const char* kLoopMethods[] = {"changed", "cycle"};

template <size_t N>
bool Has(const char* const (&names)[N], absl::string_view name) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* other) { return name == other; });
}

absl::StatusOr<Value> Pieces(Budget& budget, const std::vector<absl::string_view>& pieces, bool is_tuple = false) {
  std::vector<Value> items;
  for (const absl::string_view piece : pieces) {
    JINJA_ASSIGN_OR_RETURN(Value item, MakeString(budget, std::string(piece)));
    items.push_back(std::move(item));
  }
  return MakeList(budget, std::move(items), is_tuple);
}

absl::StatusOr<Value> StripMethod(Budget& budget, const std::string& text, const std::string& name,
                                  const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"chars"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> chars, bound.String(0));
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  if (chars.has_value()) JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size() * std::min<size_t>(chars->size() + 1, 64)));
  const std::optional<absl::string_view> set =
      chars.has_value() ? std::optional<absl::string_view>(*chars) : std::nullopt;
  return MakeString(budget, std::string(Strip(text, set, side)));
}

absl::StatusOr<Value> SplitMethod(Budget& budget, const std::string& text, const std::string& name,
                                  const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"sep", "maxsplit"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> separator, bound.String(0));
  JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> max_splits, bound.Integer(1));
  const std::optional<absl::string_view> by =
      separator.has_value() ? std::optional<absl::string_view>(*separator) : std::nullopt;
  JINJA_ASSIGN_OR_RETURN(const auto pieces, Split(budget, text, by, max_splits.value_or(-1), name == "rsplit"));
  return Pieces(budget, pieces);
}

// startswith and endswith take one text or a tuple of them.
absl::StatusOr<Value> AffixMethod(Budget& budget, const std::string& text, const std::string& name,
                                  const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"prefix"}));
  if (bound.Get(0) == nullptr) return TypeError(absl::StrCat(name, " needs an argument"));
  const Value& arg = *bound.Get(0);
  std::vector<Value> options = {arg};
  if (arg.is_list() && arg.as_list().is_tuple) options = arg.as_list().items;
  JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(options.size())));
  for (const Value& option : options) {
    if (option.is_undefined()) return UndefinedError(option);
    if (!option.is_string()) {
      return TypeError(absl::StrCat(name, " first arg must be str or a tuple of str, not ", option.type_name()));
    }
    const std::string& affix = option.as_string();
    if (name == "startswith" ? absl::StartsWith(text, affix) : absl::EndsWith(text, affix)) return Value(true);
  }
  return Value(false);
}

absl::StatusOr<Value> FindMethod(Budget& budget, const std::string& text, const std::string& name,
                                 const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"sub"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> needle, bound.String(0));
  if (!needle.has_value()) return TypeError(absl::StrCat(name, " needs a str"));
  if (name == "count") {
    Int count = 0;
    if (needle->empty()) return Value(static_cast<Int>(CountCodePoints(text)) + 1);
    for (size_t at = 0;; ++count) {
      JINJA_ASSIGN_OR_RETURN(at, FindText(budget, text, *needle, at));
      if (at == std::string::npos) return Value(count);
      at += needle->size();
    }
  }
  size_t found = std::string::npos;
  if (name == "rfind") {
    JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size() * std::min<size_t>(needle->size() + 1, 64)));
    found = text.rfind(*needle);
  } else {
    JINJA_ASSIGN_OR_RETURN(found, FindText(budget, text, *needle, 0));
  }
  if (found == std::string::npos) {
    if (name == "index") return TypeError("substring not found");
    return Value(Int{-1});
  }
  return Value(static_cast<Int>(CountCodePoints(absl::string_view(text).substr(0, found))));
}

absl::StatusOr<Value> PartitionMethod(Budget& budget, const std::string& text, const std::string& name,
                                      const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"sep"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> separator, bound.String(0));
  if (!separator.has_value()) return TypeError(absl::StrCat(name, " needs a str"));
  JINJA_ASSIGN_OR_RETURN(const auto parts, Split(budget, text, *separator, 1, name == "rpartition"));
  if (parts.size() == 2) return Pieces(budget, {parts[0], *separator, parts[1]}, true);
  if (name == "partition") return Pieces(budget, {text, "", ""}, true);
  return Pieces(budget, {"", "", text}, true);
}

absl::StatusOr<Value> ReplaceMethod(Budget& budget, const std::string& text, const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("replace", args, {"old", "new", "count"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> from, bound.String(0));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> to, bound.String(1));
  JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> count, bound.Integer(2));
  if (!from.has_value() || !to.has_value()) return TypeError("replace needs two strs");
  JINJA_ASSIGN_OR_RETURN(std::string out, Replace(budget, text, *from, *to, count.value_or(-1)));
  return MakeString(budget, std::move(out));
}

absl::StatusOr<Value> JoinMethod(Budget& budget, const std::string& text, const CallArgs& args) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("join", args, {"iterable"}));
  if (bound.Get(0) == nullptr) return TypeError("join needs an argument");
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(budget, *bound.Get(0)));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      return TypeError(absl::StrCat("sequence item ", i, ": expected str instance, ", items[i].type_name(), " found"));
    }
    JINJA_RETURN_IF_ERROR(budget.CheckString(out.size() + text.size() + items[i].as_string().size()));
    if (i > 0) out += text;
    out += items[i].as_string();
  }
  return MakeString(budget, std::move(out));
}

// is... : not empty, and all code points (or all that have case) of a class.
bool IsOfClass(const std::string& text, const std::string& name) {
  bool any = false;
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) {
    const int32_t c = CodePointAt(text, at);
    const utf8proc_category_t category = utf8proc_category(c);
    const bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool digit = category == UTF8PROC_CATEGORY_ND;
    if (name == "islower" || name == "isupper") {
      const bool lower = category == UTF8PROC_CATEGORY_LL;
      const bool upper = category == UTF8PROC_CATEGORY_LU;
      if (category == UTF8PROC_CATEGORY_LT || (name == "islower" ? upper : lower)) return false;
      any |= lower || upper;
      continue;
    }
    const bool fits = name == "isspace"   ? IsSpace(c)
                      : name == "isdigit" ? digit
                      : name == "isalpha" ? letter
                                          : IsAlphanumeric(c);
    if (!fits) return false;
    any = true;
  }
  return any;
}

absl::StatusOr<Value> NoArgsMethod(Budget& budget, const std::string& text, const std::string& name) {
  JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size() * 4));
  if (absl::StartsWith(name, "is")) return Value(IsOfClass(text, name));
  if (name == "upper") return MakeString(budget, Upper(text));
  if (name == "lower") return MakeString(budget, Lower(text));
  if (name == "title") return MakeString(budget, Title(text));
  if (name == "capitalize") return MakeString(budget, Capitalize(text));
  std::string swapped;  // swapcase
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) {
    const std::string one = text.substr(at, CodePointSize(text, at));
    swapped += Upper(one) == one ? Lower(one) : Upper(one);
  }
  return MakeString(budget, std::move(swapped));
}

absl::StatusOr<Value> StringMethod(Budget& budget, const std::string& text, const std::string& name,
                                   const CallArgs& args) {
  JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip") return StripMethod(budget, text, name, args);
  if (name == "split" || name == "rsplit") return SplitMethod(budget, text, name, args);
  if (name == "startswith" || name == "endswith") return AffixMethod(budget, text, name, args);
  if (name == "find" || name == "rfind" || name == "index" || name == "count")
    return FindMethod(budget, text, name, args);
  if (name == "partition" || name == "rpartition") return PartitionMethod(budget, text, name, args);
  if (name == "replace") return ReplaceMethod(budget, text, args);
  if (name == "join") return JoinMethod(budget, text, args);
  if (name == "format") return absl::UnimplementedError("str.format is not supported in chat templates; use ~");
  if (name == "splitlines") {
    JINJA_RETURN_IF_ERROR(BoundArgs::Bind(name, args, {}).status());
    return Pieces(budget, SplitLines(text));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"affix"}));
    JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> affix, bound.String(0));
    if (!affix.has_value()) return TypeError(absl::StrCat(name, " needs a str"));
    const bool front = name == "removeprefix";
    if (!(front ? absl::StartsWith(text, *affix) : absl::EndsWith(text, *affix))) return MakeString(budget, text);
    return MakeString(budget, front ? text.substr(affix->size()) : text.substr(0, text.size() - affix->size()));
  }
  if (name == "zfill") {
    JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"width"}));
    JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> width, bound.Integer(0));
    const int64_t missing = width.value_or(0) - static_cast<int64_t>(CountCodePoints(text));
    if (missing <= 0) return MakeString(budget, text);
    JINJA_RETURN_IF_ERROR(budget.CheckString(text.size() + static_cast<size_t>(missing)));
    const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    return MakeString(budget,
                      text.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') + text.substr(sign));
  }
  JINJA_RETURN_IF_ERROR(BoundArgs::Bind(name, args, {}).status());
  return NoArgsMethod(budget, text, name);
}

absl::StatusOr<Value> DictMethod(Budget& budget, const Value& self, const std::string& name, const CallArgs& args) {
  const Dict& dict = self.as_dict();
  if (name == "get") {
    JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"key", "default"}));
    if (bound.Get(0) == nullptr) return TypeError("get needs a key");
    JINJA_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, dict, *bound.Get(0)));
    if (found != nullptr) return *found;
    return bound.Get(1) == nullptr ? Value(None{}) : *bound.Get(1);
  }
  JINJA_RETURN_IF_ERROR(BoundArgs::Bind(name, args, {}).status());
  if (name == "copy") return self;
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items) {
    JINJA_RETURN_IF_ERROR(budget.Step());
    if (name == "keys") {
      out.push_back(key);
    } else if (name == "values") {
      out.push_back(value);
    } else {
      JINJA_ASSIGN_OR_RETURN(Value pair, MakeList(budget, {key, value}, true));
      out.push_back(std::move(pair));
    }
  }
  return MakeList(budget, std::move(out));
}

absl::StatusOr<Value> ListMethod(Budget& budget, const Value& self, const std::string& name, const CallArgs& args) {
  const std::vector<Value>& items = self.as_list().items;
  if (name == "copy") return self;
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind(name, args, {"value"}));
  if (bound.Get(0) == nullptr) return TypeError(absl::StrCat(name, " needs a value"));
  Int count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, items[i], *bound.Get(0)));
    if (same && name == "index") return Value(static_cast<Int>(i));
    count += same;
  }
  if (name == "index") return TypeError("the value is not in the list");
  return Value(count);
}

absl::StatusOr<Value> LoopMethod(Budget& budget, Loop* loop, const std::string& name, const CallArgs& args) {
  if (!args.named.empty()) return TypeError(absl::StrCat("loop.", name, " takes no named arguments"));
  if (name == "cycle") {
    if (args.positional.empty()) return TypeError("no items for cycling given");
    return args.positional[loop->index % args.positional.size()];
  }
  bool changed = !loop->has_changed || loop->last_changed.size() != args.positional.size();
  for (size_t i = 0; !changed && i < args.positional.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, loop->last_changed[i], args.positional[i]));
    changed = !same;
  }
  if (changed) {
    loop->has_changed = true;
    loop->last_changed = args.positional;
  }
  return Value(changed);
}

}  // namespace

bool HasMethod(const Value& object, absl::string_view name) {
  if (object.is_string()) return Has(kStringMethods, name);
  if (object.is_dict()) return Has(kDictMethods, name);
  if (object.is_list()) return object.as_list().is_tuple ? Has(kTupleMethods, name) : Has(kListMethods, name);
  return object.is_loop() && Has(kLoopMethods, name);
}

absl::StatusOr<Value> CallMethod(Interpreter& interpreter, const Value& self, const std::string& name,
                                 const CallArgs& args) {
  Budget& budget = interpreter.budget();
  JINJA_RETURN_IF_ERROR(budget.Step());
  if (self.is_string()) return StringMethod(budget, self.as_string(), name, args);
  if (self.is_loop()) return LoopMethod(budget, self.as_loop(), name, args);
  static constexpr const char* kMutating[] = {"append", "clear",   "extend",     "insert", "pop",   "popitem",
                                              "remove", "reverse", "setdefault", "sort",   "update"};
  if (Has(kMutating, name)) {
    return TypeError(
        absl::StrCat("access to '", name, "' of a ", self.type_name(), " is unsafe: values cannot be changed"));
  }
  return self.is_dict() ? DictMethod(budget, self, name, args) : ListMethod(budget, self, name, args);
}

}  // namespace baton::model::jinja
