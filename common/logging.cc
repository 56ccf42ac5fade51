#include "common/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton {
namespace {

constexpr const char* kLevelNames[] = {"trace", "debug", "info", "warn", "error"};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<int>(level)];
}

struct State {
  std::shared_ptr<spdlog::logger> logger;
  bool json = false;
  std::string process;
};

// Never destroyed: detached libraries' threads may log while the process exits.
State& GetState() {
  static State* state = [] {
    auto* s = new State();
    s->logger = std::make_shared<spdlog::logger>("baton", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    s->logger->set_pattern("%v");
    s->logger->set_level(spdlog::level::info);
    s->logger->flush_on(spdlog::level::trace);
    return s;
  }();
  return *state;
}

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == 0x7f) return true;
  }
  return false;
}

std::string Quote(absl::string_view value) {
  return nlohmann::json(std::string(value)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string LogField::Format(double v) { return std::isfinite(v) ? absl::StrFormat("%.6g", v) : "null"; }

absl::Status InitLogging(absl::string_view level, absl::string_view format, absl::string_view process) {
  State& state = GetState();
  int index = -1;
  for (int i = 0; i < 5; ++i) {
    if (level == kLevelNames[i]) index = i;
  }
  if (index < 0) return absl::InvalidArgumentError(absl::StrCat("log_level ", level, " is not one of trace..error"));
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(absl::StrCat("log_format ", format, " is neither text nor json"));
  }
  state.logger->set_level(ToSpdlog(static_cast<LogLevel>(index)));
  state.json = format == "json";
  state.process = std::string(process);
  return absl::OkStatus();
}

bool LogEnabled(LogLevel level) { return GetState().logger->should_log(ToSpdlog(level)); }

std::string FormatLogLine(bool json, LogLevel level, absl::string_view time, absl::string_view process,
                          absl::string_view message, std::initializer_list<LogField> fields) {
  const char* level_name = kLevelNames[static_cast<int>(level)];
  if (!json) {
    std::string line = absl::StrCat(time, " ", level_name, " ", process, process.empty() ? "" : ": ", message);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", field.name, "=", NeedsQuotes(field.value) ? Quote(field.value) : field.value);
    }
    return line;
  }
  std::string line = absl::StrCat("{\"time\":", Quote(time), ",\"level\":\"", level_name,
                                  "\",\"process\":", Quote(process), ",\"message\":", Quote(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",", Quote(field.name), ":",
                    field.kind == LogField::Kind::kText ? Quote(field.value) : field.value);
  }
  return line + "}";
}

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  State& state = GetState();
  if (!state.logger->should_log(ToSpdlog(level))) return;
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  state.logger->log(ToSpdlog(level),
                    spdlog::string_view_t(FormatLogLine(state.json, level, time, state.process, message, fields)));
}

}  // namespace baton
