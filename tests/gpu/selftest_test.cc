// The self-test's own checks, on the emulator: so that on a GPU a failure is the GPU's.
#include "tests/gpu/selftest.h"

#include <gtest/gtest.h>

namespace baton::kernels::cuda {
namespace {

TEST(SelfTest, PassesOnTheEmulator) {
  const std::vector<CheckResult> results = RunChecks(false, 5);
  EXPECT_GT(results.size(), 60u);
  for (const CheckResult& result : results) EXPECT_EQ(result.failure, "") << result.name;
}

}  // namespace
}  // namespace baton::kernels::cuda
