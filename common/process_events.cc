#include "common/process_events.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/mutex.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

Mutex* OutputMutex() {
  static Mutex* mu = new Mutex();
  return mu;
}

int g_event_fd = STDOUT_FILENO;

// One write for a line where the pipe allows, so that lines of several processes on one terminal do not mix.
void WriteLine(const Json& event) {
  const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(g_event_fd, line.data() + done, line.size() - done);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) done += n;
  }
}

}  // namespace

void ReserveStdout() {
  MutexLock lock(OutputMutex());
  fflush(stdout);
  const int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return;  // stdout is closed
  g_event_fd = fd;
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

void EmitLoading(absl::string_view phase, double progress) {
  static std::string* last_phase = new std::string();
  static int last_percent = -1;
  const int percent = static_cast<int>(std::clamp(progress, 0.0, 1.0) * 100);
  MutexLock lock(OutputMutex());
  if (*last_phase == std::string(phase) && percent == last_percent) return;
  *last_phase = std::string(phase);
  last_percent = percent;
  WriteLine({{"event", "loading"}, {"phase", std::string(phase)}, {"progress", percent / 100.0}});
}

void EmitReady(absl::string_view role, absl::string_view name, absl::string_view listen, absl::string_view http) {
  MutexLock lock(OutputMutex());
  WriteLine({{"event", "ready"},
             {"role", std::string(role)},
             {"name", std::string(name)},
             {"listen", std::string(listen)},
             {"http", std::string(http)},
             {"pid", getpid()}});
}

void EmitEvent(absl::string_view event, absl::string_view key, absl::string_view value) {
  Json line = {{"event", std::string(event)}};
  if (!key.empty()) line[std::string(key)] = std::string(value);
  MutexLock lock(OutputMutex());
  WriteLine(line);
}

}  // namespace baton
