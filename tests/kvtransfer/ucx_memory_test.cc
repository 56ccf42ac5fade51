// What is said of the installed UCX's memory.
#include "kvtransfer/ucx_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace baton::kvtransfer {
namespace {

TEST(UcxMemoryTest, IsToldAndHasNoGpusWithoutADriver) {
  const absl::StatusOr<UcxMemory> memory = QueryUcxMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->version.substr(0, 2), "1.");
  if (access("/dev/nvidiactl", F_OK) != 0) {
    EXPECT_FALSE(memory->cuda);
  }
}

}  // namespace
}  // namespace baton::kvtransfer
