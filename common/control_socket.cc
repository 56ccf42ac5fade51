#include "common/control_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace baton {
namespace {

constexpr size_t kMaxLine = 4096;
constexpr size_t kMaxCallers = 8;
constexpr absl::Duration kCallerPatience = absl::Seconds(2);

absl::Status Error(absl::string_view what, absl::string_view path) {
  const absl::string_view why = std::strerror(errno);
  if (errno == ENOENT || errno == ECONNREFUSED) {
    return absl::NotFoundError(absl::StrCat("No `baton up` listens at ", path, "."));
  }
  return absl::UnavailableError(absl::StrCat("Cannot ", what, " ", path, ": ", why, "."));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::UnavailableError(absl::StrCat("The socket's path is too long: ", path, "; set TMPDIR to a shorter one."));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

absl::StatusOr<std::string> ControlSocketPath(const std::string& router) {
  std::string base = "/tmp";
  for (const char* variable : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    const char* value = std::getenv(variable);
    std::error_code ignored;
    if (value != nullptr && std::filesystem::is_directory(value, ignored)) base = value;
  }
  const std::string dir = absl::StrCat(base, "/baton-up-", ::getuid());
  struct stat info;
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return Error("make", dir);
  if (::lstat(dir.c_str(), &info) != 0) return Error("look at", dir);
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::getuid() || (info.st_mode & 077) != 0) {
    return absl::UnavailableError(absl::StrCat(dir, " is not a folder of this user alone; remove it."));
  }
  std::string name = router;
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return absl::StrCat(dir, "/", name, ".sock");
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Listen(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  std::unique_ptr<ControlServer> server(new ControlServer());
  server->listen_fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (server->listen_fd_ < 0) return Error("make", path);
  ::unlink(path.c_str());  // the router's port was free, so whoever made it is gone
  if (::bind(server->listen_fd_, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      ::listen(server->listen_fd_, 4) != 0) {
    return Error("listen at", path);
  }
  server->path_ = path;
  return server;
}

ControlServer::~ControlServer() {
  for (const Caller& caller : callers_) ::close(caller.fd);
  if (listen_fd_ >= 0) ::close(listen_fd_);
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::vector<int> ControlServer::fds() const {
  std::vector<int> fds = {listen_fd_};
  for (const Caller& caller : callers_) fds.push_back(caller.fd);
  return fds;
}

void ControlServer::Serve(const Handler& handler) {
  const absl::Time now = absl::Now();
  for (int fd; (fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    if (callers_.size() < kMaxCallers) {
      callers_.push_back({fd, now, {}});
    } else {
      ::close(fd);
    }
  }
  std::erase_if(callers_, [&](Caller& caller) {
    char buffer[kMaxLine];
    const ssize_t got = ::recv(caller.fd, buffer, sizeof(buffer), 0);
    if (got > 0) caller.text.append(buffer, static_cast<size_t>(got));
    const size_t end = caller.text.find('\n');
    const bool over = got == 0 || (got < 0 && errno != EAGAIN) || caller.text.size() > kMaxLine ||
                      now - caller.since > kCallerPatience;
    if (end == std::string::npos && !over) return false;
    if (end != std::string::npos && end < kMaxLine) {
      const nlohmann::json request = nlohmann::json::parse(caller.text.substr(0, end), nullptr, false);
      const std::string answer = handler(request).dump() + "\n";
      // Fits the socket's buffer.
      (void)!::send(caller.fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
    ::close(caller.fd);
    return true;
  });
}

absl::StatusOr<nlohmann::json> CallControl(const std::string& path, const nlohmann::json& request,
                                           absl::Duration timeout) {
  const absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error("open", path);
  const std::string line = request.dump() + "\n";
  absl::StatusOr<nlohmann::json> result = absl::UnavailableError("`baton up` did not answer in time.");
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    result = Error("reach", path);
  } else if (::send(fd, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    result = Error("write to", path);
  } else {
    std::string text;
    const absl::Time until = absl::Now() + timeout;
    while (text.find('\n') == std::string::npos && absl::Now() < until) {
      pollfd waiting = {fd, POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(until - absl::Now())) + 1);
      char buffer[kMaxLine];
      const ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got == 0) break;
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    const nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
    if (answer.is_object()) result = answer;
  }
  ::close(fd);
  return result;
}

}  // namespace baton
