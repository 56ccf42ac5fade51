// What can be checked and measured on a device, the same on a GPU and on the emulator.
#ifndef BATON_TESTS_GPU_SELFTEST_H_
#define BATON_TESTS_GPU_SELFTEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

struct CheckResult {
  std::string name;
  std::string failure;  // empty: passed
};
// Every kernel against the CPU's plain C++ kernels, bit for bit (on tensor cores near them), on random shapes; larger ones with
// `large`.
std::vector<CheckResult> RunChecks(bool large, uint32_t seed);

// Of events and graphs.
std::vector<CheckResult> RunStreamChecks(bool large);

struct Timing {
  std::string name;
  double seconds = 0;  // of one call
  double bytes = 0;    // read at least, or 0
  double flops = 0;    // or 0
  bool tensor_cores = false;
};
// The shapes of a model of 8 billion weights.
absl::StatusOr<std::vector<Timing>> RunTimings();

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_GPU_SELFTEST_H_
