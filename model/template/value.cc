#include "model/template/value.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

absl::Status Exhausted(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, "; the template does too much for these messages"));
}

bool IsKey(const Value& value) {
  if (value.is_list()) {
    if (!value.as_list().is_tuple) return false;
    return std::all_of(value.as_list().items.begin(), value.as_list().items.end(), IsKey);
  }
  return !value.is_dict() && !value.is_namespace();
}

}  // namespace

absl::Status TypeError(absl::string_view message) { return absl::InvalidArgumentError(std::string(message)); }

absl::Status UndefinedError(const Value& value) { return absl::InvalidArgumentError(value.undefined_what()); }

absl::Status Budget::Step(int64_t count) {
  steps_ -= count;
  if (steps_ < 0) return Exhausted(absl::StrCat("more than ", max_steps_, " steps"));
  return absl::OkStatus();
}

absl::Status Budget::Alloc(size_t bytes) {
  if (bytes > alloc_bytes_) return Exhausted(absl::StrCat("more than ", max_alloc_bytes_, " bytes of values"));
  alloc_bytes_ -= bytes;
  return absl::OkStatus();
}

absl::Status Budget::CheckString(size_t bytes) {
  if (bytes > max_string_bytes_) {
    return Exhausted(absl::StrCat("a text of ", bytes, " bytes where ", max_string_bytes_, " are allowed"));
  }
  return absl::OkStatus();
}

Value Value::UndefinedNamed(std::string what) {
  Value value;
  value.v_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

std::string Value::undefined_what() const {
  const Undefined& undefined = std::get<Undefined>(v_);
  return undefined.what == nullptr ? "an undefined value was used" : *undefined.what;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return as_list().is_tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_loop()) return "LoopContext";
  return "function";
}

int Value::depth() const {
  if (is_list()) return as_list().depth;
  if (is_dict()) return as_dict().depth;
  if (is_callable()) return as_callable().self.depth() + 1;
  return 0;
}

absl::StatusOr<Value> MakeString(Budget& budget, std::string text) {
  JINJA_RETURN_IF_ERROR(budget.CheckString(text.size()));
  JINJA_RETURN_IF_ERROR(budget.Alloc(text.size() + 64));
  JINJA_RETURN_IF_ERROR(budget.StepBytes(text.size()));
  return Value(std::move(text));
}

absl::StatusOr<Value> MakeList(Budget& budget, std::vector<Value> items, bool is_tuple) {
  JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(items.size()) / 8));
  JINJA_RETURN_IF_ERROR(budget.Alloc(64 + items.size() * sizeof(Value)));
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  if (list->depth > budget.max_depth()) return Exhausted(absl::StrCat("data nested deeper than ", budget.max_depth()));
  list->items = std::move(items);
  list->is_tuple = is_tuple;
  return Value(std::shared_ptr<const List>(std::move(list)));
}

absl::StatusOr<Value> MakeDict(Budget& budget, std::vector<std::pair<Value, Value>> items) {
  JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(items.size()) / 4));
  JINJA_RETURN_IF_ERROR(budget.Alloc(128 + items.size() * 4 * sizeof(Value)));
  auto dict = std::make_shared<Dict>();
  dict->items.reserve(items.size());
  for (auto& [key, value] : items) {
    if (!IsKey(key)) return TypeError(absl::StrCat("unhashable type: '", key.type_name(), "'"));
    dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
    if (dict->depth > budget.max_depth())
      return Exhausted(absl::StrCat("data nested deeper than ", budget.max_depth()));
    JINJA_ASSIGN_OR_RETURN(const Value* old, FindKey(budget, *dict, key));
    if (old != nullptr) {
      *const_cast<Value*>(old) = std::move(value);  // the dict is still ours
      continue;
    }
    if (key.is_string()) {
      JINJA_RETURN_IF_ERROR(budget.Alloc(key.as_string().size()));
      dict->strings.emplace(key.as_string(), dict->items.size());
    }
    dict->items.emplace_back(std::move(key), std::move(value));
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

bool Truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_float()) return value.as_float() != 0;
  if (value.is_bool() || value.is_int()) return value.as_int() != 0;
  if (value.is_string()) return !value.as_string().empty();
  if (value.is_list()) return !value.as_list().items.empty();
  if (value.is_dict()) return !value.as_dict().items.empty();
  return true;
}

absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b) {
  JINJA_RETURN_IF_ERROR(budget.Step());
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_number() == b.as_number();
    return a.as_int() == b.as_int();
  }
  if (a.is_string() && b.is_string()) {
    if (a.as_string().size() != b.as_string().size()) return false;
    JINJA_RETURN_IF_ERROR(budget.StepBytes(a.as_string().size()));
    return a.as_string() == b.as_string();
  }
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (a.is_list() && b.is_list()) {
    const List& x = a.as_list();
    const List& y = b.as_list();
    if (x.is_tuple != y.is_tuple || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i) {
      JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, x.items[i], y.items[i]));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.as_dict().items.size() != b.as_dict().items.size()) return false;
    for (const auto& [key, value] : a.as_dict().items) {
      JINJA_ASSIGN_OR_RETURN(const Value* other, FindKey(budget, b.as_dict(), key));
      if (other == nullptr) return false;
      JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, value, *other));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_namespace() && b.is_namespace()) return a.as_namespace() == b.as_namespace();
  if (a.is_loop() && b.is_loop()) return a.as_loop() == b.as_loop();
  if (a.is_callable() && b.is_callable()) return &a.as_callable() == &b.as_callable();
  return false;
}

absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b) {
  JINJA_RETURN_IF_ERROR(budget.Step());
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_number() < b.as_number();
    return a.as_int() < b.as_int();
  }
  if (a.is_string() && b.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.StepBytes(std::min(a.as_string().size(), b.as_string().size())));
    return a.as_string() < b.as_string();  // byte order of UTF-8 is code point order
  }
  if (a.is_list() && b.is_list() && a.as_list().is_tuple == b.as_list().is_tuple) {
    const std::vector<Value>& x = a.as_list().items;
    const std::vector<Value>& y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, x[i], y[i]));
      if (!same) return Less(budget, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  return TypeError(
      absl::StrCat("'<' not supported between instances of '", a.type_name(), "' and '", b.type_name(), "'"));
}

absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string()) {
      return TypeError(absl::StrCat("'in <string>' requires string as left operand, not ", item.type_name()));
    }
    JINJA_ASSIGN_OR_RETURN(const size_t found, FindText(budget, container.as_string(), item.as_string(), 0));
    return found != std::string::npos;
  }
  if (container.is_list()) {
    for (const Value& element : container.as_list().items) {
      JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, element, item));
      if (same) return true;
    }
    return false;
  }
  if (container.is_dict()) {
    JINJA_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, container.as_dict(), item));
    return found != nullptr;
  }
  return TypeError(absl::StrCat("argument of type '", container.type_name(), "' is not iterable"));
}

absl::StatusOr<size_t> Length(Budget& budget, const Value& value) {
  if (value.is_undefined()) return size_t{0};
  if (value.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.StepBytes(value.as_string().size()));
    return CountCodePoints(value.as_string());
  }
  if (value.is_list()) return value.as_list().items.size();
  if (value.is_dict()) return value.as_dict().items.size();
  if (value.is_loop()) return value.as_loop()->items->items.size();
  return TypeError(absl::StrCat("object of type '", value.type_name(), "' has no len()"));
}

absl::StatusOr<std::vector<Value>> Elements(Budget& budget, const Value& value) {
  std::vector<Value> elements;
  if (value.is_undefined()) return elements;
  if (value.is_list()) {
    const std::vector<Value>& items = value.as_list().items;
    JINJA_RETURN_IF_ERROR(budget.Alloc(items.size() * sizeof(Value)));
    JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(items.size()) / 8));
    return items;
  }
  if (value.is_dict()) {
    const auto& items = value.as_dict().items;
    JINJA_RETURN_IF_ERROR(budget.Alloc(items.size() * sizeof(Value)));
    JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(items.size()) / 8));
    for (const auto& [key, unused] : items) elements.push_back(key);
    return elements;
  }
  if (value.is_string()) {
    const std::string& text = value.as_string();
    for (size_t at = 0; at < text.size();) {
      const size_t size = CodePointSize(text, at);
      JINJA_ASSIGN_OR_RETURN(Value element, MakeString(budget, text.substr(at, size)));
      elements.push_back(std::move(element));
      at += size;
    }
    return elements;
  }
  return TypeError(absl::StrCat("'", value.type_name(), "' object is not iterable"));
}

absl::StatusOr<const Value*> FindKey(Budget& budget, const Dict& dict, const Value& key) {
  JINJA_RETURN_IF_ERROR(budget.Step());
  if (key.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.StepBytes(key.as_string().size()));
    const auto it = dict.strings.find(key.as_string());
    return it == dict.strings.end() ? nullptr : &dict.items[it->second].second;
  }
  if (!IsKey(key)) return TypeError(absl::StrCat("unhashable type: '", key.type_name(), "'"));
  if (dict.strings.size() == dict.items.size()) return static_cast<const Value*>(nullptr);
  for (const auto& [other, value] : dict.items) {
    if (other.is_string()) {
      JINJA_RETURN_IF_ERROR(budget.Step());
      continue;
    }
    JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, other, key));
    if (same) return &value;
  }
  return static_cast<const Value*>(nullptr);
}

}  // namespace baton::model::jinja
