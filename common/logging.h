// Logs on stderr, one line an event, as text or JSON. Stdout belongs to data (and to common/process_events.h).
//
// Never log prompts, completions, token ids, keys or credentials, at any level; log ids, counts and durations.
//
// Nothing waits for stderr: what it does not take at once is dropped, and the next line says how many were.
//
// Thread contract: everything is thread-safe. Before InitLogging, logs go to stderr as text from level info.
#ifndef BATON_COMMON_LOGGING_H_
#define BATON_COMMON_LOGGING_H_

#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

// `level` and `format` as in proto/config.proto; `process` names the process in every line ("prefill-0"). Call before
// other threads log. INVALID_ARGUMENT for names it does not know.
absl::Status InitLogging(absl::string_view level, absl::string_view format, absl::string_view process);

// One name and value of a line. Numbers stay numbers in JSON.
struct LogField {
  enum class Kind { kText, kNumber, kBool };
  LogField(const char* name, absl::string_view value) : name(name), value(value), kind(Kind::kText) {}
  LogField(const char* name, const std::string& value) : name(name), value(value), kind(Kind::kText) {}
  LogField(const char* name, const char* value) : name(name), value(value), kind(Kind::kText) {}
  LogField(const char* name, bool value) : name(name), value(value ? "true" : "false"), kind(Kind::kBool) {}
  LogField(const char* name, const absl::Status& status) : name(name), value(status.ToString()), kind(Kind::kText) {}
  template <class Number>
  requires(std::is_arithmetic_v<Number>) LogField(const char* name, Number number)
      : name(name), value(Format(number)), kind(Kind::kNumber) {}

  const char* name;
  std::string value;
  Kind kind;

 private:
  static std::string Format(double v);
  template <class Integer>
  requires(std::is_integral_v<Integer>) static std::string Format(Integer v) { return std::to_string(v); }
};

bool LogEnabled(LogLevel level);
// `message` is a fixed phrase; what varies goes into fields.
void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {});

inline void LogDebug(absl::string_view message, std::initializer_list<LogField> fields = {}) {
  if (LogEnabled(LogLevel::kDebug)) Log(LogLevel::kDebug, message, fields);
}
inline void LogInfo(absl::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogWarn(absl::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarn, message, fields);
}
inline void LogError(absl::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, message, fields);
}

// The line without its end, as Log writes it; for tests.
std::string FormatLogLine(bool json, LogLevel level, absl::string_view time, absl::string_view process,
                          absl::string_view message, std::initializer_list<LogField> fields);

}  // namespace baton

#endif  // BATON_COMMON_LOGGING_H_
