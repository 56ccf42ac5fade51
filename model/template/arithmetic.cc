#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/template/interpreter.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

const char* OpText(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "**";
  }
}

absl::Status Overflow() { return TypeError("an integer does not fit in 128 bits"); }

absl::StatusOr<Int> IntPower(Budget& budget, Int base, Int exponent) {
  Int result = 1;
  for (; exponent > 0; --exponent) {
    JINJA_RETURN_IF_ERROR(budget.Step());
    if (base == 0 || base == 1) return base;
    if (base == -1) return exponent % 2 == 0 ? result : -result;
    if (__builtin_mul_overflow(result, base, &result)) return Overflow();
  }
  return result;
}

absl::StatusOr<Value> IntArithmetic(Budget& budget, Op op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return Overflow();
      return Value(result);
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return Overflow();
      return Value(result);
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return Overflow();
      return Value(result);
    case Op::kDiv:
      if (b == 0) return TypeError("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) return TypeError("integer division or modulo by zero");
      if (b == -1) return op == Op::kMod ? absl::StatusOr<Value>(Value(Int{0})) : IntArithmetic(budget, Op::kSub, 0, a);
      Int quotient = a / b;
      Int remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
        --quotient;
      }
      return Value(op == Op::kMod ? remainder : quotient);
    }
    default: {
      if (b < 0) {
        if (a == 0) return TypeError("0.0 cannot be raised to a negative power");
        return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      JINJA_ASSIGN_OR_RETURN(result, IntPower(budget, a, b));
      return Value(result);
    }
  }
}

absl::StatusOr<Value> FloatArithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value(a + b);
    case Op::kSub:
      return Value(a - b);
    case Op::kMul:
      return Value(a * b);
    case Op::kDiv:
      if (b == 0) return TypeError("float division by zero");
      return Value(a / b);
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) return TypeError("float floor division by zero");
      double remainder = std::fmod(a, b);
      double quotient = (a - remainder) / b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
        quotient -= 1;
      }
      if (op == Op::kMod) return Value(remainder == 0 ? std::copysign(0.0, b) : remainder);
      return Value(quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient));
    }
    default: {
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) return TypeError("a power that is no real number");
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) return TypeError("a power that is too large");
      return Value(power);
    }
  }
}

// text or list times a number
absl::StatusOr<Value> Repeat(Budget& budget, const Value& value, Int times) {
  times = std::max<Int>(times, 0);
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (text.empty()) return value;
    if (times > static_cast<Int>(budget.max_string_bytes())) times = static_cast<Int>(budget.max_string_bytes()) + 1;
    JINJA_RETURN_IF_ERROR(budget.CheckString(static_cast<size_t>(times) * text.size()));
    std::string out;
    for (Int i = 0; i < times; ++i) out += text;
    return MakeString(budget, std::move(out));
  }
  const List& list = value.as_list();
  if (list.items.empty()) return value;
  Int total = 0;
  if (__builtin_mul_overflow(times, static_cast<Int>(list.items.size()), &total) || total > INT32_MAX)
    total = INT32_MAX;
  JINJA_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(total)));
  std::vector<Value> items;
  for (Int i = 0; i < times; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  return MakeList(budget, std::move(items), list.is_tuple);
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Budget& budget, Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return FloatArithmetic(op, a.as_number(), b.as_number());
    return IntArithmetic(budget, op, a.as_int(), b.as_int());
  }
  const auto repeats = [](const Value& v, const Value& n) {
    return (v.is_string() || v.is_list()) && (n.is_int() || n.is_bool());
  };
  if (op == Op::kMul && repeats(a, b)) return Repeat(budget, a, b.as_int());
  if (op == Op::kMul && repeats(b, a)) return Repeat(budget, b, a.as_int());
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.CheckString(a.as_string().size() + b.as_string().size()));
    return MakeString(budget, absl::StrCat(a.as_string(), b.as_string()));
  }
  if (op == Op::kAdd && a.is_list() && b.is_list() && a.as_list().is_tuple == b.as_list().is_tuple) {
    JINJA_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(budget, a));
    items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
    return MakeList(budget, std::move(items), a.as_list().is_tuple);
  }
  if (op == Op::kMod && a.is_string()) return TypeError("%-formatting is not supported; use ~");
  if (op == Op::kAdd && a.is_string()) {
    return TypeError(absl::StrCat("can only concatenate str (not \"", b.type_name(), "\") to str"));
  }
  return TypeError(absl::StrCat("unsupported operand type(s) for ", OpText(op), ": '", a.type_name(), "' and '",
                                b.type_name(), "'"));
}

}  // namespace baton::model::jinja
