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
// One rank sends 1 MiB to itself; empty where NCCL is absent.
std::vector<CheckResult> CheckNccl();

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_GPU_SELFTEST_LIBRARIES_H_
