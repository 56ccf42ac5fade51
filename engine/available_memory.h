// How much memory this process may still take.
#ifndef BATON_ENGINE_AVAILABLE_MEMORY_H_
#define BATON_ENGINE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::engine {

struct AvailableMemory {
  int64_t bytes = INT64_MAX;
  std::string source = "unknown";  // "MemAvailable" or "cgroup"
};

// The smaller of the kernel's MemAvailable and what the control group (v2, v1) leaves; INT64_MAX where neither is
// known. `root` replaces "/" in tests.
AvailableMemory ReadAvailableMemory(const std::string& root = "");

// What a worker is about to hold.
struct MemoryDemand {
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t total() const { return weight_bytes + kv_bytes + scratch_bytes; }
};

// RESOURCE_EXHAUSTED with the arithmetic and what to change when `demand` exceeds `available`.
absl::Status CheckMemory(const MemoryDemand& demand, const AvailableMemory& available);

}  // namespace baton::engine

#endif  // BATON_ENGINE_AVAILABLE_MEMORY_H_
