#include "router/http/json_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router::http {

const Json* JsonFields::Find(const std::string& name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(const std::string& name, absl::string_view description) {
  Fail(InvalidField(absl::StrCat(path_, name), description));
}

void JsonFields::WrongType(const std::string& name, absl::string_view wanted, const Json& got) {
  Fail(name, absl::StrCat("must be ", wanted, ", and is of type ", got.type_name()));
}

std::optional<bool> JsonFields::Bool(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  WrongType(name, "true or false", *value);
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Int(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) {
    if (const uint64_t number = value->get<uint64_t>(); number <= std::numeric_limits<int64_t>::max()) {
      return static_cast<int64_t>(number);
    }
    Fail(name, "is larger than 9223372036854775807");
    return std::nullopt;
  }
  if (value->is_number_integer()) return value->get<int64_t>();
  if (value->is_number_float()) {  // some clients write 16.0
    const double number = value->get<double>();
    if (std::abs(number) < 1e15 && number == std::floor(number)) return static_cast<int64_t>(number);
  }
  WrongType(name, "an integer", *value);
  return std::nullopt;
}

std::optional<int32_t> JsonFields::Int32(const std::string& name) {
  const std::optional<int64_t> number = Int(name);
  if (!number.has_value()) return std::nullopt;
  if (*number < std::numeric_limits<int32_t>::min() || *number > std::numeric_limits<int32_t>::max()) {
    Fail(name, absl::StrCat(*number, " is not in [-2147483648, 2147483647]"));
    return std::nullopt;
  }
  return static_cast<int32_t>(*number);
}

std::optional<float> JsonFields::Float(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return static_cast<float>(value->get<double>());
  WrongType(name, "a number", *value);
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  WrongType(name, "a string", *value);
  return std::nullopt;
}

const Json* JsonFields::Object(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  WrongType(name, "an object", *value);
  return nullptr;
}

const Json* JsonFields::Array(const std::string& name) {
  const Json* value = Find(name);
  if (value == nullptr || value->is_array()) return value;
  WrongType(name, "an array", *value);
  return nullptr;
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> names;
  for (auto it = object_.begin(); it != object_.end(); ++it) {
    if (read_.count(it.key()) == 0 && !it.value().is_null()) names.push_back(it.key());
  }
  return names;
}

}  // namespace baton::router::http
