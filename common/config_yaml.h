// A flat YAML mapping of scalars, read event by event: no document tree, so depth, size and node count stay bounded.
#ifndef BATON_COMMON_CONFIG_YAML_H_
#define BATON_COMMON_CONFIG_YAML_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

inline constexpr size_t kMaxYamlBytes = 1 << 20;
inline constexpr int kMaxYamlNodes = 1000;

struct YamlEntry {
  std::string key;
  std::string value;
  int line = 0;  // 1-based
};

// INVALID_ARGUMENT with `file_name` and the line: not YAML, not one flat mapping, a key twice, too big.
absl::StatusOr<std::vector<YamlEntry>> ParseFlatYaml(absl::string_view text, absl::string_view file_name);

}  // namespace baton

#endif  // BATON_COMMON_CONFIG_YAML_H_
