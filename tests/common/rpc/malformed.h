// Damage at random, the same in every run of one seed, for the tests of malformed requests at each door.
#ifndef BATON_TESTS_COMMON_RPC_MALFORMED_H_
#define BATON_TESTS_COMMON_RPC_MALFORMED_H_

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace baton::testing {

// How many requests each test of a door sends: 2,000, or BATON_MALFORMED.
inline int MalformedCount() {
  const char* count = std::getenv("BATON_MALFORMED");
  return count != nullptr ? std::atoi(count) : 2000;
}

inline size_t Below(size_t bound, std::mt19937_64* random) { return static_cast<size_t>((*random)() % bound); }

// One to four changes: a byte, one of `pieces` put in, some bytes left out, the rest cut off, a part repeated.
inline std::string Damage(std::string text, const std::vector<std::string>& pieces, std::mt19937_64* random) {
  for (size_t n = 1 + Below(4, random); n > 0 && !text.empty(); --n) {
    const size_t at = Below(text.size(), random);
    switch (Below(5, random)) {
      case 0:
        text[at] = static_cast<char>(Below(256, random));
        break;
      case 1:
        text.insert(at, pieces[Below(pieces.size(), random)]);
        break;
      case 2:
        text.erase(at, 1 + Below(12, random));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text.insert(at, text.substr(Below(text.size(), random), Below(40, random)));
        break;
    }
  }
  return text;
}

// Of this process, in KiB.
inline int64_t ResidentKib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

// What a process may grow by in the second half of such a flood. A sanitizer keeps what was freed for a while.
#ifdef BATON_SANITIZE
inline constexpr int64_t kMayGrowKib = 512 << 10;
#else
inline constexpr int64_t kMayGrowKib = 64 << 10;
#endif

}  // namespace baton::testing

#endif  // BATON_TESTS_COMMON_RPC_MALFORMED_H_
