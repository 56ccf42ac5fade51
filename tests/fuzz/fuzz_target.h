// What a fuzz target defines. libFuzzer calls the first function; fuzz_main.cc, which needs no special compiler, calls
// both. An input must neither crash, hang nor leak; what it means does not matter.
#ifndef BATON_TESTS_FUZZ_FUZZ_TARGET_H_
#define BATON_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Valid inputs to start from.
std::vector<std::string> FuzzSeeds();

#endif  // BATON_TESTS_FUZZ_FUZZ_TARGET_H_
