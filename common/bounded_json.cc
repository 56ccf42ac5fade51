#include "common/bounded_json.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Counts brackets, colons and commas outside strings. Text that is not JSON may pass; the parser refuses it later.
absl::Status CheckShape(absl::string_view text, const JsonLimits& limits) {
  std::vector<int64_t> members;  // of each open container
  int64_t values = 1, all_members = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '{':
      case '[':
        members.push_back(0);
        ++values;
        break;
      case '}':
      case ']':
        if (!members.empty()) members.pop_back();
        break;
      case ',':
        ++values;
        break;
      case ':':
        ++all_members;
        if (!members.empty() && ++members.back() > limits.max_object_members) {
          return absl::InvalidArgumentError(
              absl::StrCat("an object has more than ", limits.max_object_members, " members"));
        }
        break;
      default:
        break;
    }
    if (static_cast<int64_t>(members.size()) > limits.max_depth) {
      return absl::InvalidArgumentError(absl::StrCat("nested deeper than ", limits.max_depth));
    }
    if (values > limits.max_values || all_members > limits.max_members) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", limits.max_values, " values or ", limits.max_members, " members of objects"));
    }
  }
  return absl::OkStatus();
}

// Builds nothing: finds the place of the first error, for the message.
class ErrorFinder : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }
  std::size_t position = 0;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> ParseBoundedJson(absl::string_view text, const JsonLimits& limits) {
  if (absl::Status status = CheckShape(text, limits); !status.ok()) return status;
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_discarded()) return json;
  ErrorFinder finder;
  nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &finder);
  return absl::InvalidArgumentError(
      absl::StrCat("not valid JSON (or not UTF-8, or a number too large) at byte ", finder.position));
}

}  // namespace baton
