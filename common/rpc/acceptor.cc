#include "common/rpc/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/logging.h"

namespace baton::rpc {
namespace {

constexpr rlim_t kReserved = 32;  // descriptors
constexpr int kPauseMs = 10;      // before the next try to accept
constexpr int kUnacknowledgedMs = 10'000;  // until a connection counts as broken; gRPC takes its keepalive timeout (server.cc)
constexpr absl::Duration kTellEvery = absl::Minutes(1);

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  in_port_t& field = address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(address)->sin_port;
  field = htons(static_cast<uint16_t>(port));
}

// -1, and errno.
int Bind(const addrinfo& a, bool both_families) {
  const int fd = socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1, only_v6 = both_families ? 0 : 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // As gRPC's listener does; accepted sockets inherit them.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof kUnacknowledgedMs);
  if (a.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  if (bind(fd, a.ai_addr, a.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

bool IsOfTheLastDescriptors(int fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(fd) + std::min(kReserved, limit.rlim_cur / 4) >= limit.rlim_cur;
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const HostPort& target) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor());
  acceptor->port_ = target.port;
  const bool wildcard = target.host == "0.0.0.0" || target.host == "::";
  int error = EADDRNOTAVAIL;
  // Where there is no IPv6, "::" cannot be bound, and 0.0.0.0 is all there is.
  const std::vector<std::string> hosts = wildcard ? std::vector<std::string>{"::", "0.0.0.0"} : std::vector<std::string>{target.host};
  for (const std::string& host : hosts) {
    if (!acceptor->listeners_.empty()) break;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), absl::StrCat(target.port).c_str(), &hints, &found) != 0) continue;
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
      SetPort(a->ai_addr, acceptor->port_);
      const int fd = Bind(*a, wildcard);
      if (fd < 0) {
        error = errno;
        continue;
      }
      acceptor->listeners_.push_back(fd);
      acceptor->port_ = PortOf(fd);
    }
    freeaddrinfo(found);
  }
  acceptor->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (acceptor->listeners_.empty() || acceptor->wake_ < 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", JoinHostPort(target.host, target.port), ": ",
                                               strerror(acceptor->listeners_.empty() ? error : errno)));
  }
  return acceptor;
}

void Acceptor::Start(std::function<void(int listener, int fd)> on_connection) {
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    thread_.join();
  }
  for (const int fd : listeners_) close(fd);
  listeners_.clear();
  if (wake_ >= 0) close(std::exchange(wake_, -1));
}

void Acceptor::Run() {
  std::vector<pollfd> waited;
  for (const int fd : listeners_) waited.push_back({fd, POLLIN, 0});
  waited.push_back({wake_, POLLIN, 0});
  for (;;) {
    if (poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) return;
    if (waited.back().revents != 0) return;
    bool pause = false;
    for (size_t i = 0; i + 1 < waited.size(); ++i) {
      if (waited[i].revents != 0) pause |= !AcceptAll(waited[i].fd);
    }
    pollfd stop = {wake_, POLLIN, 0};
    if (pause && poll(&stop, 1, kPauseMs) > 0) return;
  }
}

bool Acceptor::AcceptAll(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return false;  // such as EMFILE, ENOBUFS
    }
    if (!IsOfTheLastDescriptors(fd)) {
      on_connection_(listener, fd);
      continue;
    }
    close(fd);
    if (const absl::Time now = absl::Now(); now - told_ >= kTellEvery) {
      told_ = now;
      LogWarn("new connections are closed: there are hardly any descriptors left; raise the limit (ulimit -n, LimitNOFILE=)",
              {{"port", port_}});
    }
  }
}

}  // namespace baton::rpc
