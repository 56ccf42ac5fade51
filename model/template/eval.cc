// The expressions of a template.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/template/interpreter.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {

absl::StatusOr<Value> Interpreter::Eval(const Expr& expr) {
  ++frame_depth_;
  line_ = expr.line;
  absl::Status entered = EnterFrame();
  absl::StatusOr<Value> value = entered.ok() ? EvalNode(expr) : absl::StatusOr<Value>(entered);
  --frame_depth_;
  return value;
}

absl::StatusOr<Value> Interpreter::EvalNode(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return EvalName(expr);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      JINJA_ASSIGN_OR_RETURN(std::vector<Value> items, EvalAll(expr.args));
      return MakeList(budget_, std::move(items), expr.kind == ExprKind::kTuple);
    }
    case ExprKind::kDict:
      return EvalDict(expr);
    case ExprKind::kGetAttr: {
      JINJA_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0]));
      return GetAttr(object, expr.text);
    }
    case ExprKind::kGetItem: {
      JINJA_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0]));
      JINJA_ASSIGN_OR_RETURN(const Value key, Eval(*expr.args[1]));
      return GetItem(object, key);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr);
    case ExprKind::kCall:
      return EvalCall(expr);
    case ExprKind::kFilter:
      return EvalFilter(expr);
    case ExprKind::kTest:
      return EvalTest(expr);
    case ExprKind::kNot: {
      JINJA_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.args[0]));
      return Value(!Truth(operand));
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return EvalSign(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvalLogic(expr);
    case ExprKind::kArithmetic:
      return EvalArithmetic(expr);
    case ExprKind::kConcat:
      return EvalConcat(expr);
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kConditional: {
      JINJA_ASSIGN_OR_RETURN(const Value test, Eval(*expr.args[0]));
      if (Truth(test)) return Eval(*expr.args[1]);
      if (expr.args[2] != nullptr) return Eval(*expr.args[2]);
      return Value::UndefinedNamed("the inline if-expression evaluated to false and no else section was defined");
    }
  }
  return absl::InternalError("an expression of unknown kind");
}

absl::StatusOr<Value> Interpreter::EvalName(const Expr& expr) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto it = scope->variables.find(expr.name);
    if (it != scope->variables.end()) return it->second;
  }
  return Value::UndefinedNamed(absl::StrCat("'", tree_.names[static_cast<size_t>(expr.name)], "' is undefined"));
}

absl::StatusOr<std::vector<Value>> Interpreter::EvalAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    JINJA_ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Value> Interpreter::EvalDict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    JINJA_ASSIGN_OR_RETURN(Value key, Eval(*expr.args[i]));
    JINJA_ASSIGN_OR_RETURN(Value value, Eval(*expr.args[i + 1]));
    items.emplace_back(std::move(key), std::move(value));
  }
  return MakeDict(budget_, std::move(items));
}

absl::StatusOr<Value> Interpreter::EvalSign(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.args[0]));
  if (operand.is_undefined()) return UndefinedError(operand);
  const bool negate = expr.kind == ExprKind::kNegate;
  if (operand.is_float()) return Value(negate ? -operand.as_float() : operand.as_float());
  if (!operand.is_number())
    return TypeError(absl::StrCat("bad operand type for unary sign: '", operand.type_name(), "'"));
  if (!negate) return Value(operand.as_int());
  return Arithmetic(budget_, Op::kSub, Value(Int{0}), operand);
}

absl::StatusOr<Value> Interpreter::EvalLogic(const Expr& expr) {
  const bool stop_at = expr.kind == ExprKind::kOr;
  Value value;
  for (const ExprPtr& arg : expr.args) {
    JINJA_ASSIGN_OR_RETURN(value, Eval(*arg));
    if (Truth(value) == stop_at) break;
  }
  return value;
}

absl::StatusOr<Value> Interpreter::EvalArithmetic(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(Value value, Eval(*expr.args[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.args[i + 1]));
    line_ = expr.line;
    JINJA_ASSIGN_OR_RETURN(value, Arithmetic(budget_, expr.ops[i], value, operand));
  }
  return value;
}

absl::StatusOr<Value> Interpreter::EvalConcat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& arg : expr.args) {
    JINJA_ASSIGN_OR_RETURN(const Value value, Eval(*arg));
    JINJA_ASSIGN_OR_RETURN(const std::string part, Str(budget_, value));
    JINJA_RETURN_IF_ERROR(budget_.CheckString(text.size() + part.size()));
    text += part;
  }
  return MakeString(budget_, std::move(text));
}

namespace {

absl::StatusOr<bool> Compare(Budget& budget, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return Equal(budget, a, b);
    case Op::kNe: {
      JINJA_ASSIGN_OR_RETURN(const bool same, Equal(budget, a, b));
      return !same;
    }
    case Op::kLt:
      return Less(budget, a, b);
    case Op::kGt:
      return Less(budget, b, a);
    case Op::kLe:
    case Op::kGe: {
      // Not the inverse of the other: both are false for a NaN.
      JINJA_ASSIGN_OR_RETURN(const bool less, op == Op::kLe ? Less(budget, a, b) : Less(budget, b, a));
      if (less) return true;
      return Equal(budget, a, b);
    }
    case Op::kIn:
      return Contains(budget, b, a);
    case Op::kNotIn: {
      JINJA_ASSIGN_OR_RETURN(const bool contains, Contains(budget, b, a));
      return !contains;
    }
    default:
      return absl::InternalError("a comparison of unknown kind");
  }
}

}  // namespace

absl::StatusOr<Value> Interpreter::EvalCompare(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(Value left, Eval(*expr.args[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    JINJA_ASSIGN_OR_RETURN(Value right, Eval(*expr.args[i + 1]));
    line_ = expr.line;
    JINJA_ASSIGN_OR_RETURN(const bool holds, Compare(budget_, expr.ops[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<CallArgs> Interpreter::EvalArgs(const Expr& expr) {
  CallArgs args;
  JINJA_ASSIGN_OR_RETURN(args.positional, EvalAll(expr.call_args));
  for (const auto& [name, value_expr] : expr.call_kwargs) {
    JINJA_ASSIGN_OR_RETURN(Value value, Eval(*value_expr));
    args.named.emplace_back(name, std::move(value));
  }
  if (expr.star_args != nullptr) {
    JINJA_ASSIGN_OR_RETURN(const Value value, Eval(*expr.star_args));
    JINJA_ASSIGN_OR_RETURN(std::vector<Value> more, Elements(budget_, value));
    for (Value& item : more) args.positional.push_back(std::move(item));
  }
  if (expr.star_kwargs != nullptr) {
    JINJA_ASSIGN_OR_RETURN(const Value value, Eval(*expr.star_kwargs));
    if (!value.is_dict()) return TypeError("the argument after ** must be a mapping");
    JINJA_RETURN_IF_ERROR(budget_.Step(static_cast<int64_t>(value.as_dict().items.size())));
    for (const auto& [key, item] : value.as_dict().items) {
      if (!key.is_string()) return TypeError("keywords must be strings");
      for (const auto& [name, unused] : args.named) {
        JINJA_RETURN_IF_ERROR(budget_.Step());
        if (name == key.as_string())
          return TypeError(absl::StrCat("multiple values for keyword argument '", name, "'"));
      }
      args.named.emplace_back(key.as_string(), item);
    }
  }
  return args;
}

absl::StatusOr<Value> Interpreter::EvalCall(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.args[0]));
  JINJA_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(expr));
  line_ = expr.line;
  return Call(callee, args);
}

absl::StatusOr<Value> Interpreter::EvalFilter(const Expr& expr) {
  Value operand = block_text_;
  if (expr.args[0] != nullptr) {
    JINJA_ASSIGN_OR_RETURN(operand, Eval(*expr.args[0]));
  }
  JINJA_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(expr));
  line_ = expr.line;
  return CallFilter(expr.text, operand, args);
}

absl::StatusOr<Value> Interpreter::EvalTest(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.args[0]));
  JINJA_ASSIGN_OR_RETURN(const CallArgs args, EvalArgs(expr));
  line_ = expr.line;
  JINJA_ASSIGN_OR_RETURN(const bool holds, CallTest(expr.text, operand, args));
  return Value(holds);
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, const CallArgs& args) {
  if (callee.is_undefined()) return UndefinedError(callee);
  if (!callee.is_callable()) return TypeError(absl::StrCat("'", callee.type_name(), "' object is not callable"));
  const Callable& callable = callee.as_callable();
  switch (callable.kind) {
    case Callable::Kind::kMacro:
      return CallMacro(callable, args);
    case Callable::Kind::kMethod:
      return CallMethod(*this, callable.self, callable.name, args);
    case Callable::Kind::kGlobal:
      return CallGlobal(*this, callable.name, args);
  }
  return absl::InternalError("a callable of unknown kind");
}

namespace {

Value LoopAttribute(const Loop& loop, const std::string& name) {
  const Int index = static_cast<Int>(loop.index);
  const Int length = static_cast<Int>(loop.items->items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(Int{1});
  if (name == "depth0") return Value(Int{0});
  if (name == "previtem") {
    return index == 0 ? Value::UndefinedNamed("there is no previous item") : loop.items->items[loop.index - 1];
  }
  if (name == "nextitem") {
    return index + 1 >= length ? Value::UndefinedNamed("there is no next item") : loop.items->items[loop.index + 1];
  }
  return Value::UndefinedNamed(absl::StrCat("'loop' has no attribute '", name, "'"));
}

absl::StatusOr<Value> Method(Budget& budget, const Value& object, const std::string& name) {
  JINJA_RETURN_IF_ERROR(budget.Alloc(sizeof(Callable)));
  auto method = std::make_shared<Callable>();
  method->kind = Callable::Kind::kMethod;
  method->name = name;
  method->self = object;
  return Value(std::shared_ptr<const Callable>(std::move(method)));
}

Value NoSuch(const Value& object, absl::string_view name) {
  return Value::UndefinedNamed(absl::StrCat("'", object.type_name(), " object' has no attribute '", name, "'"));
}

// By code points.
absl::StatusOr<Value> Substring(Budget& budget, const std::string& text, Int start, Int stop) {
  size_t begin = 0;
  for (Int i = 0; i < start && begin < text.size(); ++i) begin += CodePointSize(text, begin);
  size_t end = begin;
  for (Int i = start; i < stop && end < text.size(); ++i) end += CodePointSize(text, end);
  return MakeString(budget, text.substr(begin, end - begin));
}

}  // namespace

absl::StatusOr<Value> Interpreter::GetAttr(const Value& object, const std::string& name) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_loop() && !HasMethod(object, name)) return LoopAttribute(*object.as_loop(), name);
  if (object.is_namespace()) {
    const auto& attributes = object.as_namespace()->attributes;
    const auto it = attributes.find(name);
    return it == attributes.end() ? NoSuch(object, name) : it->second;
  }
  if (HasMethod(object, name)) return Method(budget_, object, name);
  if (object.is_dict()) {
    JINJA_ASSIGN_OR_RETURN(const Value* found, FindKey(budget_, object.as_dict(), Value(name)));
    if (found != nullptr) return *found;
  }
  return NoSuch(object, name);
}

absl::StatusOr<Value> Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_dict()) {
    if (key.is_list() || key.is_dict()) return NoSuch(object, key.type_name());
    JINJA_ASSIGN_OR_RETURN(const Value* found, FindKey(budget_, object.as_dict(), key));
    if (found != nullptr) return *found;
  }
  if (key.is_string()) {
    if (object.is_dict() && !HasMethod(object, key.as_string())) return NoSuch(object, key.as_string());
    return GetAttr(object, key.as_string());
  }
  if ((key.is_int() || key.is_bool()) && (object.is_list() || object.is_string())) {
    JINJA_ASSIGN_OR_RETURN(const size_t length, Length(budget_, object));
    Int index = key.as_int();
    if (index < 0) index += static_cast<Int>(length);
    if (index >= 0 && index < static_cast<Int>(length)) {
      if (object.is_list()) return object.as_list().items[static_cast<size_t>(index)];
      const std::string& text = object.as_string();
      size_t at = 0;
      for (Int i = 0; i < index; ++i) at += CodePointSize(text, at);
      return MakeString(budget_, text.substr(at, CodePointSize(text, at)));
    }
  }
  return Value::UndefinedNamed(absl::StrCat(object.type_name(), " object has no such element"));
}

absl::StatusOr<Value> Interpreter::EvalSlice(const Expr& expr) {
  JINJA_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0]));
  std::optional<Int> bounds[3];  // start, stop, step
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] == nullptr) continue;
    JINJA_ASSIGN_OR_RETURN(const Value bound, Eval(*expr.args[i + 1]));
    if (bound.is_none()) continue;
    if (bound.is_undefined()) return UndefinedError(bound);
    if (!bound.is_int() && !bound.is_bool()) return TypeError("slice indices must be integers or None");
    bounds[i] = bound.as_int();
  }
  if (object.is_undefined()) return UndefinedError(object);
  if (!object.is_list() && !object.is_string()) {
    return Value::UndefinedNamed(absl::StrCat(object.type_name(), " object cannot be sliced"));
  }
  const Int step = bounds[2].value_or(1);
  if (step == 0) return TypeError("slice step cannot be zero");
  JINJA_ASSIGN_OR_RETURN(const size_t num_elements, Length(budget_, object));
  const Int length = static_cast<Int>(num_elements);
  const Int lowest = step > 0 ? 0 : -1;
  const Int highest = step > 0 ? length : length - 1;
  const auto resolve = [&](std::optional<Int> bound, Int otherwise) {
    if (!bound.has_value()) return otherwise;
    return std::clamp(*bound < 0 ? *bound + length : *bound, lowest, highest);
  };
  const Int start = resolve(bounds[0], step > 0 ? 0 : length - 1);
  const Int stop = resolve(bounds[1], step > 0 ? length : -1);
  if (object.is_string() && step == 1) return Substring(budget_, object.as_string(), start, stop);
  JINJA_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(budget_, object));
  std::vector<Value> items;
  // Steps beyond the length are all alike, and would overflow.
  const Int stride = std::clamp(step, -length - 1, length + 1);
  for (Int i = start; step > 0 ? i < stop : i > stop; i += stride) items.push_back(elements[static_cast<size_t>(i)]);
  if (object.is_list()) return MakeList(budget_, std::move(items), object.as_list().is_tuple);
  std::string text;
  for (const Value& item : items) text += item.as_string();
  return MakeString(budget_, std::move(text));
}

}  // namespace baton::model::jinja
