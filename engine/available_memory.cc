#include "engine/available_memory.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::engine {
namespace {

// A file that holds one number.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;  // "max" is no limit
  return value;
}

// "name 123" or "name: 123 kB" lines.
std::optional<int64_t> ReadField(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key, unit;
    int64_t value = 0;
    if (!(words >> key >> value) || key != std::string(name)) continue;
    words >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

void Lower(std::optional<int64_t> bytes, const char* source, AvailableMemory* result) {
  if (!bytes.has_value() || *bytes >= result->bytes) return;
  result->bytes = *bytes < 0 ? 0 : *bytes;
  result->source = source;
}

// limit - (usage - page cache that can be dropped).
std::optional<int64_t> GroupRoom(const std::string& limit_file, const std::string& usage_file,
                                 const std::string& stat_file, const char* cache_field) {
  const std::optional<int64_t> limit = ReadNumber(limit_file);
  const std::optional<int64_t> usage = ReadNumber(usage_file);
  if (!limit.has_value() || !usage.has_value()) return std::nullopt;
  return *limit - *usage + ReadField(stat_file, cache_field).value_or(0);
}

std::string Mib(int64_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

AvailableMemory ReadAvailableMemory(const std::string& root) {
  AvailableMemory result;
  Lower(ReadField(root + "/proc/meminfo", "MemAvailable:"), "MemAvailable", &result);
  const std::string v2 = root + "/sys/fs/cgroup";
  Lower(GroupRoom(v2 + "/memory.max", v2 + "/memory.current", v2 + "/memory.stat", "inactive_file"), "cgroup", &result);
  const std::string v1 = root + "/sys/fs/cgroup/memory";
  Lower(GroupRoom(v1 + "/memory.limit_in_bytes", v1 + "/memory.usage_in_bytes", v1 + "/memory.stat",
                  "total_inactive_file"),
        "cgroup", &result);
  return result;
}

absl::Status CheckMemory(const MemoryDemand& demand, const AvailableMemory& available) {
  if (demand.total() <= available.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "does not fit in memory: weights ", Mib(demand.weight_bytes), " + KV ", Mib(demand.kv_bytes), " + scratch ",
      Mib(demand.scratch_bytes), " = ", Mib(demand.total()), ", but ", Mib(available.bytes), " are available (",
      available.source, "); lower kv_memory_mib, use a smaller model, or free memory"));
}

}  // namespace baton::engine
