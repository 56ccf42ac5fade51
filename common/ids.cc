#include "common/ids.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace baton {

void RandomBytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = getrandom(out.data(), out.size(), 0);
    if (n < 0 && errno != EINTR) abort();
    if (n > 0) out = out.subspan(n);
  }
}

uint64_t RandomU64() {
  uint64_t value = 0;
  RandomBytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::string HexEncode(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    hex += kDigits[static_cast<unsigned>(b) >> 4];
    hex += kDigits[static_cast<unsigned>(b) & 15];
  }
  return hex;
}

std::string NewIncarnation() {
  std::array<std::byte, 16> bytes;
  RandomBytes(bytes);
  return HexEncode(bytes);
}

std::string NewRequestId() { return "req-" + NewIncarnation(); }

}  // namespace baton
