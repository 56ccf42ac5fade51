// Filters over sequences and mappings, and the dispatch of all filters.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/template/filters.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

absl::StatusOr<BoundArgs> Bind(const FilterCall& call, std::initializer_list<const char*> params) {
  return BoundArgs::Bind(absl::StrCat("the filter ", call.name), call.args, params);
}

// "a.b.0" looked up part by part; `otherwise` (may be null) replaces what is undefined.
absl::StatusOr<Value> Attribute(Interpreter& interpreter, Value item, const Value& attribute, const Value* otherwise) {
  if (attribute.is_none()) return item;
  if (!attribute.is_string()) return interpreter.GetItem(item, attribute);
  const std::vector<std::string> parts = absl::StrSplit(attribute.as_string(), '.');
  for (const std::string& part : parts) {
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
    const std::optional<Int> index = is_number ? ParseInt(part, 10) : std::nullopt;
    JINJA_ASSIGN_OR_RETURN(item, interpreter.GetItem(item, index.has_value() ? Value(*index) : Value(part)));
    if (item.is_undefined() && otherwise != nullptr) item = *otherwise;
  }
  return item;
}

absl::StatusOr<Value> FoldCase(Budget& budget, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  JINJA_RETURN_IF_ERROR(budget.StepBytes(value.as_string().size() * 4));
  return MakeString(budget, Lower(value.as_string()));
}

struct Keyed {
  Value key;
  Value item;
};

// Stable, in n log n comparisons, each of which may fail.
absl::Status MergeSort(Budget& budget, std::vector<Keyed>* items, bool reverse) {
  std::vector<Keyed> buffer(items->size());
  for (size_t width = 1; width < items->size(); width *= 2) {
    for (size_t low = 0; low < items->size(); low += 2 * width) {
      const size_t middle = std::min(low + width, items->size());
      const size_t high = std::min(low + 2 * width, items->size());
      size_t left = low;
      size_t right = middle;
      for (size_t out = low; out < high; ++out) {
        bool take_right = left == middle;
        if (left < middle && right < high) {
          const Value& a = (*items)[left].key;
          const Value& b = (*items)[right].key;
          JINJA_ASSIGN_OR_RETURN(take_right, reverse ? Less(budget, a, b) : Less(budget, b, a));
        }
        buffer[out] = std::move((*items)[take_right ? right++ : left++]);
      }
    }
    items->swap(buffer);
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> SortedItems(Budget& budget, std::vector<Keyed> items, bool reverse) {
  JINJA_RETURN_IF_ERROR(MergeSort(budget, &items, reverse));
  std::vector<Value> sorted;
  for (Keyed& item : items) sorted.push_back(std::move(item.item));
  return MakeList(budget, std::move(sorted));
}

absl::StatusOr<Value> SortFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"reverse", "case_sensitive", "attribute"}));
  const bool case_sensitive = bound.Truth(1, false);
  const Value attribute = bound.Get(2) == nullptr ? Value(None{}) : *bound.Get(2);
  std::vector<Value> attributes = {attribute};
  if (attribute.is_string()) {
    attributes.clear();
    for (const absl::string_view part : absl::StrSplit(attribute.as_string(), ','))
      attributes.emplace_back(std::string(part));
  }
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  std::vector<Keyed> items;
  for (const Value& element : elements) {
    std::vector<Value> keys;
    for (const Value& part : attributes) {
      JINJA_ASSIGN_OR_RETURN(Value key, Attribute(call.interpreter, element, part, nullptr));
      JINJA_ASSIGN_OR_RETURN(key, FoldCase(call.budget, std::move(key), case_sensitive));
      keys.push_back(std::move(key));
    }
    if (keys.size() == 1) {
      items.push_back({std::move(keys[0]), element});
    } else {
      JINJA_ASSIGN_OR_RETURN(Value key, MakeList(call.budget, std::move(keys)));
      items.push_back({std::move(key), element});
    }
  }
  return SortedItems(call.budget, std::move(items), bound.Truth(0, false));
}

absl::StatusOr<Value> DictSortFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"case_sensitive", "by", "reverse"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<std::string> by, bound.String(1));
  if (by.has_value() && *by != "key" && *by != "value") return TypeError("dictsort sorts by \"key\" or \"value\"");
  if (call.operand.is_undefined()) return UndefinedError(call.operand);
  if (!call.operand.is_dict())
    return TypeError(absl::StrCat("dictsort needs a mapping, not ", call.operand.type_name()));
  std::vector<Keyed> items;
  for (const auto& [key, value] : call.operand.as_dict().items) {
    JINJA_ASSIGN_OR_RETURN(Value pair, MakeList(call.budget, {key, value}, true));
    JINJA_ASSIGN_OR_RETURN(Value sort_key,
                           FoldCase(call.budget, by.value_or("key") == "key" ? key : value, bound.Truth(0, false)));
    items.push_back({std::move(sort_key), std::move(pair)});
  }
  return SortedItems(call.budget, std::move(items), bound.Truth(2, false));
}

absl::StatusOr<Value> UniqueFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"case_sensitive", "attribute"}));
  const Value attribute = bound.Get(1) == nullptr ? Value(None{}) : *bound.Get(1);
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  absl::flat_hash_set<std::string> seen_strings;
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& element : elements) {
    JINJA_ASSIGN_OR_RETURN(Value key, Attribute(call.interpreter, element, attribute, nullptr));
    JINJA_ASSIGN_OR_RETURN(key, FoldCase(call.budget, std::move(key), bound.Truth(0, false)));
    JINJA_RETURN_IF_ERROR(call.budget.Step());
    bool is_new = true;
    if (key.is_string()) {
      JINJA_RETURN_IF_ERROR(call.budget.Alloc(key.as_string().size()));
      is_new = seen_strings.insert(key.as_string()).second;
    } else {
      for (const Value& other : seen) {
        JINJA_ASSIGN_OR_RETURN(const bool same, Equal(call.budget, other, key));
        if (same) is_new = false;
      }
      if (is_new) seen.push_back(std::move(key));
    }
    if (is_new) kept.push_back(element);
  }
  return MakeList(call.budget, std::move(kept));
}

absl::StatusOr<Value> DefaultFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"default_value", "boolean"}));
  const bool use_default = call.operand.is_undefined() || (bound.Truth(1, false) && !Truth(call.operand));
  if (!use_default) return call.operand;
  return bound.Get(0) == nullptr ? Value(std::string()) : *bound.Get(0);
}

absl::StatusOr<Value> LengthFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(const size_t length, Length(call.budget, call.operand));
  return Value(static_cast<Int>(length));
}

absl::StatusOr<Value> EndFilter(const FilterCall& call) {  // first, last
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  const bool first = call.name == "first";
  if (call.operand.is_list() || call.operand.is_string()) {
    JINJA_ASSIGN_OR_RETURN(const size_t length, Length(call.budget, call.operand));
    if (length > 0) return call.interpreter.GetItem(call.operand, Value(Int{first ? 0 : -1}));
    return Value::UndefinedNamed(absl::StrCat("no ", call.name, " item, sequence was empty"));
  }
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  if (elements.empty()) return Value::UndefinedNamed(absl::StrCat("no ", call.name, " item, sequence was empty"));
  return first ? elements.front() : elements.back();
}

absl::StatusOr<Value> ListFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  JINJA_ASSIGN_OR_RETURN(std::vector<Value> elements, Elements(call.budget, call.operand));
  return MakeList(call.budget, std::move(elements));
}

absl::StatusOr<Value> ReverseFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  if (call.operand.is_string()) {
    const std::string& text = call.operand.as_string();
    JINJA_RETURN_IF_ERROR(call.budget.StepBytes(text.size() * 2));
    std::string reversed(text.size(), '\0');
    for (size_t at = 0; at < text.size();) {
      const size_t size = CodePointSize(text, at);
      text.copy(&reversed[text.size() - at - size], size, at);
      at += size;
    }
    return MakeString(call.budget, std::move(reversed));
  }
  JINJA_ASSIGN_OR_RETURN(std::vector<Value> elements, Elements(call.budget, call.operand));
  std::reverse(elements.begin(), elements.end());
  return MakeList(call.budget, std::move(elements));
}

absl::StatusOr<Value> JoinFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"d", "attribute"}));
  std::string separator;
  if (bound.Get(0) != nullptr) {
    JINJA_ASSIGN_OR_RETURN(separator, Str(call.budget, *bound.Get(0)));
  }
  const Value attribute = bound.Get(1) == nullptr ? Value(None{}) : *bound.Get(1);
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  std::string out;
  for (size_t i = 0; i < elements.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(const Value item, Attribute(call.interpreter, elements[i], attribute, nullptr));
    JINJA_ASSIGN_OR_RETURN(const std::string text, Str(call.budget, item));
    JINJA_RETURN_IF_ERROR(call.budget.CheckString(out.size() + separator.size() + text.size()));
    if (i > 0) out += separator;
    out += text;
  }
  return MakeString(call.budget, std::move(out));
}

absl::StatusOr<Value> MapFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  std::vector<Value> mapped;
  if (call.args.positional.empty()) {
    JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"attribute", "default"}));
    if (bound.Get(0) == nullptr) return TypeError("the filter map requires a filter argument");
    // A default of None is no default, as in jinja2.
    const Value* otherwise = bound.Get(1) != nullptr && bound.Get(1)->is_none() ? nullptr : bound.Get(1);
    for (const Value& element : elements) {
      JINJA_ASSIGN_OR_RETURN(Value item, Attribute(call.interpreter, element, *bound.Get(0), otherwise));
      mapped.push_back(std::move(item));
    }
    return MakeList(call.budget, std::move(mapped));
  }
  if (!call.args.positional[0].is_string()) return TypeError("the filter map needs the name of a filter");
  const std::string name = call.args.positional[0].as_string();
  CallArgs args = call.args;
  args.positional.erase(args.positional.begin());
  for (const Value& element : elements) {
    JINJA_ASSIGN_OR_RETURN(Value item, call.interpreter.CallFilter(name, element, args));
    mapped.push_back(std::move(item));
  }
  return MakeList(call.budget, std::move(mapped));
}

// select, reject, selectattr and rejectattr
absl::StatusOr<Value> SelectFilter(const FilterCall& call) {
  const bool by_attribute = call.name == "selectattr" || call.name == "rejectattr";
  const bool keep_if = call.name == "select" || call.name == "selectattr";
  CallArgs args = call.args;
  Value attribute(None{});
  if (by_attribute) {
    if (args.positional.empty()) return TypeError(absl::StrCat("the filter ", call.name, " needs an attribute"));
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  std::string test;
  if (!args.positional.empty()) {
    if (!args.positional[0].is_string())
      return TypeError(absl::StrCat("the filter ", call.name, " needs the name of a test"));
    test = args.positional[0].as_string();
    args.positional.erase(args.positional.begin());
  }
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  std::vector<Value> kept;
  for (const Value& element : elements) {
    JINJA_RETURN_IF_ERROR(call.budget.Step());
    JINJA_ASSIGN_OR_RETURN(const Value item, Attribute(call.interpreter, element, attribute, nullptr));
    bool holds = Truth(item);
    if (!test.empty()) {
      JINJA_ASSIGN_OR_RETURN(holds, call.interpreter.CallTest(test, item, args));
    }
    if (holds == keep_if) kept.push_back(element);
  }
  return MakeList(call.budget, std::move(kept));
}

absl::StatusOr<Value> ItemsFilter(const FilterCall& call) {
  JINJA_RETURN_IF_ERROR(Bind(call, {}).status());
  if (call.operand.is_undefined()) return MakeList(call.budget, {});
  if (!call.operand.is_dict()) return TypeError("can only get item pairs from a mapping");
  return CallMethod(call.interpreter, call.operand, "items", {});
}

absl::StatusOr<Value> BatchFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"linecount", "fill_with"}));
  JINJA_ASSIGN_OR_RETURN(const std::optional<int64_t> size, bound.Integer(0));
  if (!size.has_value() || *size < 1) return TypeError("the filter batch needs a size of 1 or more");
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  const bool fills = bound.Get(1) != nullptr && !bound.Get(1)->is_none();
  std::vector<Value> batches;
  for (size_t at = 0; at < elements.size();) {
    const size_t count = std::min(elements.size() - at, static_cast<size_t>(*size));
    std::vector<Value> batch(elements.begin() + static_cast<ptrdiff_t>(at),
                             elements.begin() + static_cast<ptrdiff_t>(at + count));
    if (fills && count < static_cast<size_t>(*size)) {
      JINJA_RETURN_IF_ERROR(call.budget.Step(*size));
      JINJA_RETURN_IF_ERROR(
          call.budget.Alloc(sizeof(Value) * std::min<size_t>(static_cast<size_t>(*size), size_t{1} << 40)));
      batch.resize(static_cast<size_t>(*size), *bound.Get(1));
    }
    JINJA_ASSIGN_OR_RETURN(Value list, MakeList(call.budget, std::move(batch)));
    batches.push_back(std::move(list));
    at += count;
  }
  return MakeList(call.budget, std::move(batches));
}

absl::StatusOr<Value> SumFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"attribute", "start"}));
  const Value attribute = bound.Get(0) == nullptr ? Value(None{}) : *bound.Get(0);
  Value sum = bound.Get(1) == nullptr ? Value(Int{0}) : *bound.Get(1);
  if (sum.is_string()) return TypeError("sum() can't sum strings");
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  for (const Value& element : elements) {
    JINJA_ASSIGN_OR_RETURN(const Value item, Attribute(call.interpreter, element, attribute, nullptr));
    JINJA_ASSIGN_OR_RETURN(sum, Arithmetic(call.budget, Op::kAdd, sum, item));
  }
  return sum;
}

absl::StatusOr<Value> ExtremeFilter(const FilterCall& call) {  // min, max
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"case_sensitive", "attribute"}));
  const Value attribute = bound.Get(1) == nullptr ? Value(None{}) : *bound.Get(1);
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(call.budget, call.operand));
  if (elements.empty()) return Value::UndefinedNamed("no aggregated item, sequence was empty");
  Value best;
  Value best_key;
  for (size_t i = 0; i < elements.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(Value key, Attribute(call.interpreter, elements[i], attribute, nullptr));
    JINJA_ASSIGN_OR_RETURN(key, FoldCase(call.budget, std::move(key), bound.Truth(0, false)));
    bool better = i == 0;
    if (i > 0) {
      JINJA_ASSIGN_OR_RETURN(better,
                             call.name == "min" ? Less(call.budget, key, best_key) : Less(call.budget, best_key, key));
    }
    if (!better) continue;
    best = elements[i];
    best_key = std::move(key);
  }
  return best;
}

absl::StatusOr<Value> AttrFilter(const FilterCall& call) {
  JINJA_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(call, {"name"}));
  if (bound.Get(0) == nullptr || !bound.Get(0)->is_string()) return TypeError("the filter attr needs a name");
  if (call.operand.is_dict() && !HasMethod(call.operand, bound.Get(0)->as_string())) {
    return Value::UndefinedNamed(absl::StrCat("'dict object' has no attribute '", bound.Get(0)->as_string(), "'"));
  }
  return call.interpreter.GetAttr(call.operand, bound.Get(0)->as_string());
}

}  // namespace

Filter FindSequenceFilter(absl::string_view name) {
  static constexpr std::pair<const char*, Filter> kFilters[] = {
      {"attr", AttrFilter},     {"batch", BatchFilter},       {"count", LengthFilter},
      {"d", DefaultFilter},     {"default", DefaultFilter},   {"dictsort", DictSortFilter},
      {"first", EndFilter},     {"items", ItemsFilter},       {"join", JoinFilter},
      {"last", EndFilter},      {"length", LengthFilter},     {"list", ListFilter},
      {"map", MapFilter},       {"max", ExtremeFilter},       {"min", ExtremeFilter},
      {"reject", SelectFilter}, {"rejectattr", SelectFilter}, {"reverse", ReverseFilter},
      {"select", SelectFilter}, {"selectattr", SelectFilter}, {"sort", SortFilter},
      {"sum", SumFilter},       {"unique", UniqueFilter},
  };
  for (const auto& [other, filter] : kFilters) {
    if (name == other) return filter;
  }
  return nullptr;
}

absl::StatusOr<Value> Interpreter::CallFilter(const std::string& name, const Value& operand, const CallArgs& args) {
  Filter filter = FindTextFilter(name);
  if (filter == nullptr) filter = FindSequenceFilter(name);
  if (filter == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no filter named '", name, "'"));
  // A frame, since map can call map.
  ++frame_depth_;
  absl::Status entered = EnterFrame();
  absl::StatusOr<Value> result =
      entered.ok() ? filter({*this, budget_, name, operand, args}) : absl::StatusOr<Value>(entered);
  --frame_depth_;
  return result;
}

}  // namespace baton::model::jinja
