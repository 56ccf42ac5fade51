// Numbers to text and back, str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {

std::string IntText(Int value) {
  // The smallest value has no positive counterpart, so digits are taken from the negative side.
  std::string digits;
  Int rest = value;
  do {
    const int digit = static_cast<int>(rest % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    rest /= 10;
  } while (rest != 0);
  if (value < 0) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string text(buffer, result.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (absl::ascii_isdigit(c)) digits.push_back(c);
  }
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    return absl::StrFormat("%s%se%s%02d", sign, mantissa, exponent < 0 ? "-" : "+", std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

// Digits with single underscores between them, as Python's literals.
std::optional<std::string> WithoutUnderscores(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    if (i == 0 || i + 1 == text.size() || !absl::ascii_isalnum(text[i - 1]) || !absl::ascii_isalnum(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace

std::optional<Int> ParseInt(absl::string_view text, int base) {
  text = Strip(text, std::nullopt, Side::kBoth);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char mark = absl::ascii_tolower(text[1]);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  const std::optional<std::string> digits = WithoutUnderscores(text);
  if (!digits.has_value() || digits->empty()) return std::nullopt;
  Int value = 0;
  for (const char c : *digits) {
    const int digit = absl::ascii_isdigit(c)   ? c - '0'
                      : absl::ascii_isalpha(c) ? absl::ascii_tolower(c) - 'a' + 10
                                               : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value)) return std::nullopt;
    if (__builtin_add_overflow(value, Int{negative ? -digit : digit}, &value)) return std::nullopt;
  }
  return value;
}

std::optional<double> ParseFloat(absl::string_view text) {
  text = Strip(text, std::nullopt, Side::kBoth);
  const std::optional<std::string> plain = WithoutUnderscores(text);
  if (!plain.has_value() || plain->empty()) return std::nullopt;
  absl::string_view digits = *plain;
  bool negative = false;
  if (digits[0] == '-' || digits[0] == '+') {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  const std::string lower = absl::AsciiStrToLower(digits);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (lower == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (lower.empty() || (!absl::ascii_isdigit(lower[0]) && lower[0] != '.')) return std::nullopt;
    const auto result = std::from_chars(lower.data(), lower.data() + lower.size(), value);
    if (result.ptr != lower.data() + lower.size() || result.ec == std::errc::invalid_argument) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) {
      value = lower.find("e-") == std::string::npos ? std::numeric_limits<double>::infinity() : 0.0;
    }
  }
  return negative ? -value : value;
}

namespace {

void AppendStringRepr(absl::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const char quote = has_single && text.find('"') == absl::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size(); at += CodePointSize(text, at)) {
    const int32_t c = CodePointAt(text, at);
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out->append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (IsPrintable(c)) {
      AppendCodePoint(c, out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(out, "\\x%02x", c);
    } else {
      absl::StrAppendFormat(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
  }
  out->push_back(quote);
}

absl::Status AppendDictRepr(Budget& budget, const Dict& dict, std::string* out) {
  out->push_back('{');
  bool first = true;
  for (const auto& [key, value] : dict.items) {
    if (!first) out->append(", ");
    first = false;
    JINJA_RETURN_IF_ERROR(AppendRepr(budget, key, out));
    out->append(": ");
    JINJA_RETURN_IF_ERROR(AppendRepr(budget, value, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

}  // namespace

absl::Status AppendRepr(Budget& budget, const Value& value, std::string* out) {
  JINJA_RETURN_IF_ERROR(budget.Step());
  JINJA_RETURN_IF_ERROR(budget.CheckString(out->size()));
  if (value.is_undefined()) {
    out->append("Undefined");
  } else if (value.is_none()) {
    out->append("None");
  } else if (value.is_bool()) {
    out->append(value.as_bool() ? "True" : "False");
  } else if (value.is_int()) {
    out->append(IntText(value.as_int()));
  } else if (value.is_float()) {
    out->append(FloatRepr(value.as_float()));
  } else if (value.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.CheckString(out->size() + value.as_string().size()));
    JINJA_RETURN_IF_ERROR(budget.StepBytes(value.as_string().size()));
    AppendStringRepr(value.as_string(), out);
  } else if (value.is_list()) {
    const List& list = value.as_list();
    out->push_back(list.is_tuple ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out->append(", ");
      JINJA_RETURN_IF_ERROR(AppendRepr(budget, list.items[i], out));
    }
    if (list.is_tuple && list.items.size() == 1) out->push_back(',');
    out->push_back(list.is_tuple ? ')' : ']');
  } else if (value.is_dict()) {
    return AppendDictRepr(budget, value.as_dict(), out);
  } else {
    return TypeError(absl::StrCat("a ", value.type_name(), " has no text"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Str(Budget& budget, const Value& value) {
  if (value.is_string()) {
    JINJA_RETURN_IF_ERROR(budget.StepBytes(value.as_string().size()));
    return value.as_string();
  }
  if (value.is_undefined()) return std::string();
  std::string out;
  JINJA_RETURN_IF_ERROR(AppendRepr(budget, value, &out));
  JINJA_RETURN_IF_ERROR(budget.CheckString(out.size()));
  return out;
}

namespace {

void AppendJsonString(absl::string_view text, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const size_t size = CodePointSize(text, at);
    const char c = text[at];
    if (size > 1 || static_cast<uint8_t>(c) >= 0x80) {
      if (ensure_ascii) {
        const int32_t code_point = CodePointAt(text, at);
        if (code_point < 0x10000) {
          absl::StrAppendFormat(out, "\\u%04x", code_point);
        } else {
          absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + ((code_point - 0x10000) >> 10),
                                0xDC00 + ((code_point - 0x10000) & 0x3FF));
        }
      } else {
        out->append(text.data() + at, size);
      }
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f') {
      out->push_back('\\');
      out->push_back(c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\b' ? 'b' : 'f');
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<int>(c));
    } else {
      out->push_back(c);
    }
    at += size;
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  absl::Status Write(const Value& value, int level) {
    JINJA_RETURN_IF_ERROR(budget_.Step());
    JINJA_RETURN_IF_ERROR(budget_.CheckString(out_.size()));
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.as_bool() ? "true" : "false";
    } else if (value.is_int()) {
      out_ += IntText(value.as_int());
    } else if (value.is_float()) {
      out_ += JsonFloat(value.as_float());
    } else if (value.is_string()) {
      JINJA_RETURN_IF_ERROR(budget_.StepBytes(value.as_string().size()));
      JINJA_RETURN_IF_ERROR(budget_.CheckString(out_.size() + value.as_string().size()));
      AppendJsonString(value.as_string(), style_.ensure_ascii, &out_);
    } else if (value.is_list()) {
      return WriteList(value.as_list(), level);
    } else if (value.is_dict()) {
      return WriteDict(value.as_dict(), level);
    } else {
      return TypeError(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
    }
    return absl::OkStatus();
  }

  std::string out_;

 private:
  static std::string JsonFloat(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(value);
  }

  absl::Status NewLine(int level) {
    if (!style_.indent.has_value()) return absl::OkStatus();
    JINJA_RETURN_IF_ERROR(budget_.CheckString(out_.size() + style_.indent->size() * static_cast<size_t>(level)));
    JINJA_RETURN_IF_ERROR(budget_.StepBytes(style_.indent->size() * static_cast<size_t>(level)));
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
    return absl::OkStatus();
  }

  absl::Status WriteList(const List& list, int level) {
    if (list.items.empty()) {
      out_ += "[]";
      return absl::OkStatus();
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      JINJA_RETURN_IF_ERROR(NewLine(level + 1));
      JINJA_RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    JINJA_RETURN_IF_ERROR(NewLine(level));
    out_ += ']';
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> KeyText(const Value& key) {
    if (key.is_string()) return key.as_string();
    if (key.is_none()) return std::string("null");
    if (key.is_bool()) return std::string(key.as_bool() ? "true" : "false");
    if (key.is_int()) return IntText(key.as_int());
    if (key.is_float()) return JsonFloat(key.as_float());
    return TypeError(absl::StrCat("keys must be str, int, float, bool or None, not ", key.type_name()));
  }

  absl::Status WriteDict(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return absl::OkStatus();
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      for (const auto* item : items) {
        if (!item->first.is_string() && items.size() > 1) return TypeError("sort_keys needs keys that are strings");
      }
      JINJA_RETURN_IF_ERROR(budget_.Step(static_cast<int64_t>(items.size()) * 4));
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return a->first.is_string() && b->first.is_string() && a->first.as_string() < b->first.as_string();
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      JINJA_RETURN_IF_ERROR(NewLine(level + 1));
      JINJA_ASSIGN_OR_RETURN(const std::string key, KeyText(item->first));
      AppendJsonString(key, style_.ensure_ascii, &out_);
      out_ += style_.key_separator;
      JINJA_RETURN_IF_ERROR(Write(item->second, level + 1));
    }
    JINJA_RETURN_IF_ERROR(NewLine(level));
    out_ += '}';
    return absl::OkStatus();
  }

  Budget& budget_;
  const JsonStyle& style_;
};

}  // namespace

absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  JINJA_RETURN_IF_ERROR(writer.Write(value, 0));
  JINJA_RETURN_IF_ERROR(budget.CheckString(writer.out_.size()));
  return std::move(writer.out_);
}

}  // namespace baton::model::jinja
