// Preloaded into a worker, sends its connections to some local ports to other ones: BATON_TEST_REDIRECT=from:to,from:to.
// So a test can stand between two processes whose addresses are signed.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

extern "C" int connect(int fd, const sockaddr* address, socklen_t length) {
  using Connect = int (*)(int, const sockaddr*, socklen_t);
  static const Connect next = reinterpret_cast<Connect>(dlsym(RTLD_NEXT, "connect"));
  const char* map = getenv("BATON_TEST_REDIRECT");
  uint16_t port = 0;
  if (address->sa_family == AF_INET) port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  if (address->sa_family == AF_INET6) port = ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  for (const char* entry = map; port != 0 && entry != nullptr && *entry != '\0';) {
    char* end = nullptr;
    const unsigned long from = strtoul(entry, &end, 10);
    const unsigned long to = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
    if (from == port) {
      sockaddr_storage other;
      memcpy(&other, address, length);
      const uint16_t changed = htons(static_cast<uint16_t>(to));
      if (address->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(&other)->sin_port = changed;
      if (address->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&other)->sin6_port = changed;
      return next(fd, reinterpret_cast<sockaddr*>(&other), length);
    }
    entry = *end == ',' ? end + 1 : nullptr;
  }
  return next(fd, address, length);
}
