// Runs a fuzz target on mutated seeds, the same ones for the same arguments: fuzz_main [EXECUTIONS [SEED]].
// Blind, unlike libFuzzer, but it runs everywhere and in every test run; use libFuzzer for the long hunts.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/fuzz_target.h"

namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}

  void Mutate(std::string* bytes) {
    for (uint64_t n = 1 + Next(4); n > 0; --n) MutateOnce(bytes);
  }
  uint64_t Next(uint64_t bound) {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  // Half of the changes fall into the first 1 KiB, where headers and counts are.
  size_t Position(const std::string& bytes) { return Next(Next(2) == 0 && bytes.size() > 1024 ? 1024 : bytes.size()); }

  void MutateOnce(std::string* bytes) {
    if (bytes->empty()) bytes->push_back('\0');
    const size_t at = Position(*bytes);
    switch (Next(6)) {
      case 0:
        (*bytes)[at] ^= static_cast<char>(1 << Next(8));
        break;
      case 1:
        (*bytes)[at] = static_cast<char>(Next(256));
        break;
      case 2: {  // a number that overflows something
        static constexpr uint64_t kNumbers[] = {0,
                                                1,
                                                2,
                                                0x7f,
                                                0xff,
                                                0x7fff,
                                                0xffff,
                                                0x7fffffff,
                                                0x80000000,
                                                0xffffffff,
                                                uint64_t{1} << 32,
                                                uint64_t{1} << 61,
                                                uint64_t{1} << 63,
                                                ~uint64_t{0}};
        const uint64_t number = kNumbers[Next(std::size(kNumbers))];
        const size_t size = size_t{1} << Next(4);
        std::memcpy(bytes->data() + at, &number, std::min(size, bytes->size() - at));
        break;
      }
      case 3:
        bytes->insert(at, 1 + Next(9), static_cast<char>(Next(256)));
        break;
      case 4:
        bytes->erase(at, 1 + Next(9));
        break;
      default:
        if (Next(8) == 0) bytes->resize(at);
        break;
    }
  }

  uint64_t state_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t executions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10000;
  Mutator mutator(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const std::vector<std::string> seeds = FuzzSeeds();
  for (const std::string& seed : seeds) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(seed.data()), seed.size());
  }
  for (uint64_t i = 0; i < executions; ++i) {
    std::string bytes = seeds[mutator.Next(seeds.size())];
    mutator.Mutate(&bytes);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%llu executions\n", static_cast<unsigned long long>(executions));
  return 0;
}
