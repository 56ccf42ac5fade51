#include "common/logging.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

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

std::string Now() { return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()); }

// Lines go to stderr at once, and never wait for whoever reads it: a collector that stands still, or a disk that is full,
// must not stop requests. What stderr does not take is dropped and counted, and the next line that it takes says so.
class StderrSink final : public spdlog::sinks::sink {
 public:
  explicit StderrSink(const State* state) : state_(state) {}
  void log(const spdlog::details::log_msg& message) override {
    MutexLock lock(&mu_);
    if (dropped_ > 0) {
      const std::string notice = FormatLogLine(state_->json, LogLevel::kWarn, Now(), state_->process,
                                               "stderr did not take all lines of this log", {{"dropped", dropped_}});
      if (!Put(notice)) {
        ++dropped_;
        return;
      }
      dropped_ = 0;
    }
    dropped_ += !Put(absl::string_view(message.payload.data(), message.payload.size()));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  bool Put(absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string text = absl::StrCat(cut_ ? "\n" : "", line, "\n");
    absl::string_view rest = text;
    while (!rest.empty()) {
      pollfd out = {STDERR_FILENO, POLLOUT, 0};
      // A pipe that is ready takes PIPE_BUF bytes without waiting.
      const size_t size = std::min<size_t>(rest.size(), PIPE_BUF);
      if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) break;
      ssize_t n = send(STDERR_FILENO, rest.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == ENOTSOCK) n = write(STDERR_FILENO, rest.data(), size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      rest.remove_prefix(static_cast<size_t>(n));
    }
    if (rest.size() < text.size()) cut_ = !rest.empty();
    return rest.empty();
  }

  const State* const state_;
  Mutex mu_;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;  // the last line's end is missing
};

// Never destroyed: detached libraries' threads may log while the process exits.
State& GetState() {
  static State* state = [] {
    auto* s = new State();
    s->logger = std::make_shared<spdlog::logger>("baton", std::make_shared<StderrSink>(s));
    s->logger->set_level(spdlog::level::info);
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
  state.logger->log(ToSpdlog(level),
                    spdlog::string_view_t(FormatLogLine(state.json, level, Now(), state.process, message, fields)));
}

}  // namespace baton
