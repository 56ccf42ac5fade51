// NVIDIA's libraries, looked for when the self-test runs: where they are absent it says so and goes on.
#ifndef BATON_TESTS_GPU_SELFTEST_LIBRARIES_H_
#define BATON_TESTS_GPU_SELFTEST_LIBRARIES_H_

#include <string>
#include <vector>

#include "tests/gpu/selftest.h"

namespace baton::kernels::cuda {

// "absent", or its version.
std::string CublasLtVersion();
std::string NcclVersion();

// Products of bfloat16 with sums in f32, which no worker uses: whether a row's bits depend on how many rows there are, and how
// long a product takes.
struct LibraryProduct {
  std::string name;
  std::string failure;              // empty: it could be measured
  std::vector<int> different_rows;  // of 1 to 512 those numbers of rows that give a row other bits than 512 do
  std::vector<Timing> timings;
};
// On the shapes of RunTimings; empty where cuBLASLt is absent.
std::vector<LibraryProduct> MeasureCublasLt();

// One rank sends 1 MiB to itself; empty where NCCL is absent.
std::vector<CheckResult> CheckNccl();

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_GPU_SELFTEST_LIBRARIES_H_
