#include "common/rpc/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::rpc {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat("\"", address.substr(0, 80),
                                                   "\" is not an address; expected host:port, such as 127.0.0.1:50051 "
                                                   "(port 0 takes a free one)"));
  };
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return bad();
  HostPort result;
  absl::string_view host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return bad();
  }
  if (host.empty() || host.size() > 255) return bad();
  result.host = std::string(host);
  const absl::string_view digits = address.substr(colon + 1);
  if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != absl::string_view::npos) {
    return bad();
  }
  if (!absl::SimpleAtoi(digits, &result.port) || result.port > 65535) return bad();
  return result;
}

std::string JoinHostPort(absl::string_view host, int port) {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr v4;
  return inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

absl::Status ExplainBindFailure(absl::string_view address) {
  absl::StatusOr<HostPort> target = ParseHostPort(address);
  if (!target.ok()) return target.status();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(target->host.c_str(), absl::StrCat(target->port).c_str(), &hints, &found);
  if (rc != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address, ": host ", target->host, ": ", gai_strerror(rc)));
  }
  absl::Status result;
  for (const addrinfo* a = found; a != nullptr && result.ok(); a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    // As gRPC's listeners do: a connection in TIME_WAIT does not count as in use.
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      const int error = errno;
      if (error == EADDRINUSE) {
        result = absl::AlreadyExistsError(
            absl::StrCat("cannot listen on ", address,
                         ": the port is in use; stop the process that has it (`ss -ltnp` names it) or ",
                         "choose another port (0 takes a free one)"));
      } else if (error == EACCES) {
        result = absl::PermissionDeniedError(
            absl::StrCat("cannot listen on ", address, ": ports below 1024 need privileges; choose another port"));
      } else {
        result = absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", strerror(error)));
      }
    }
    close(fd);
  }
  freeaddrinfo(found);
  return result;
}

}  // namespace baton::rpc
