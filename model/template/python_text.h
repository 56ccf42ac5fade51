// What Python's str, float and json do to text, for valid UTF-8. Whatever takes time is charged to a Budget.
#ifndef BATON_MODEL_TEMPLATE_PYTHON_TEXT_H_
#define BATON_MODEL_TEMPLATE_PYTHON_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/template/value.h"

namespace baton::model::jinja {

// Code points. `at` must be the start of one.
size_t CodePointSize(absl::string_view text, size_t at);
int32_t CodePointAt(absl::string_view text, size_t at);
void AppendCodePoint(int32_t code_point, std::string* out);
size_t CountCodePoints(absl::string_view text);
std::optional<size_t> FirstInvalidByte(absl::string_view text);

bool IsSpace(int32_t code_point);         // str.isspace
bool IsPrintable(int32_t code_point);     // str.isprintable
bool IsAlphanumeric(int32_t code_point);  // str.isalnum

enum class Side { kLeft, kRight, kBoth };
// `chars` nullopt: white space.
absl::string_view Strip(absl::string_view text, std::optional<absl::string_view> chars, Side side);

std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
std::string Capitalize(absl::string_view text);
std::string Title(absl::string_view text);        // str.title
std::string TitleFilter(absl::string_view text);  // Jinja's filter, which keeps to other word boundaries

// The place of `needle` at or after `from`, or npos; in linear time.
absl::StatusOr<size_t> FindText(Budget& budget, absl::string_view text, absl::string_view needle, size_t from);
// count < 0: all.
absl::StatusOr<std::string> Replace(Budget& budget, absl::string_view text, absl::string_view from,
                                    absl::string_view to, int64_t count);
// `separator` nullopt: runs of white space. max_splits < 0: no limit. From the right: str.rsplit.
absl::StatusOr<std::vector<absl::string_view>> Split(Budget& budget, absl::string_view text,
                                                     std::optional<absl::string_view> separator, int64_t max_splits,
                                                     bool from_right);
std::vector<absl::string_view> SplitLines(absl::string_view text);

std::string IntText(Int value);
std::string FloatRepr(double value);
// int(text, base) and float(text); nullopt where Python raises ValueError.
std::optional<Int> ParseInt(absl::string_view text, int base);
std::optional<double> ParseFloat(absl::string_view text);

// str(value) and repr(value). InvalidArgument for values whose text would name memory addresses.
absl::StatusOr<std::string> Str(Budget& budget, const Value& value);
absl::Status AppendRepr(Budget& budget, const Value& value, std::string* out);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// json.dumps.
absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_PYTHON_TEXT_H_
