// Settings: one schema (proto/config.proto) in three spellings, derived by reflection.
//
//   flag         --max-context=4096, --max-context 4096, --prefix-cache, --no-prefix-cache
//   environment  BATON_MAX_CONTEXT=4096
//   YAML file    max_context: 4096        (named by --config=FILE or BATON_CONFIG)
//
// Precedence: flag, environment, file, default. Every mistake is INVALID_ARGUMENT that names the field, the value,
// where it was written and what would be accepted; an unknown name comes with the nearest known one.
//
// Thread contract: plain functions and values.
#ifndef BATON_COMMON_CONFIG_H_
#define BATON_COMMON_CONFIG_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"

namespace baton {

// Some defaults (ports) differ by what the process is.
enum class ProcessRole { kRouter, kWorker, kCommand };

struct LoadedConfig {
  v1::Config config;
  // Field name to "default", "file baton.yaml:3", "environment BATON_MODEL" or "flag --model". Unset fields are absent.
  std::map<std::string, std::string> origins;
  // What a person should hear once logging is up: likely misspellings in the environment.
  std::vector<std::string> warnings;

  bool has_flag(absl::string_view field) const;  // set on the command line
};

// `args` are flags only, without the program's name. NOT_FOUND when the file named by --config does not exist.
absl::StatusOr<LoadedConfig> LoadConfig(ProcessRole role, const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& env);
// The same for main(): takes argv[1..] and the process's environment.
absl::StatusOr<LoadedConfig> LoadConfig(ProcessRole role, int argc, char** argv);

// For commands with flags of their own: first the settings among `args` (each with its value when that is a separate
// word), then everything else in order. Never fails; LoadConfig reports what is wrong with the first.
std::pair<std::vector<std::string>, std::vector<std::string>> SplitConfigFlags(const std::vector<std::string>& args);

// The environment's variables that start with BATON_.
std::map<std::string, std::string> BatonEnvironment();

struct ConfigFieldInfo {
  std::string name;  // max_context
  std::string flag;  // --max-context
  std::string env;   // BATON_MAX_CONTEXT
  std::string type;  // string, integer or boolean
  std::string help;  // the schema's comment
};
// In the schema's order.
std::vector<ConfigFieldInfo> ConfigFields();
// One line a field: flag, type, help.
std::string ConfigHelp();
// One line a field: name: value  # origin. What `config dump` prints; valid YAML.
std::string DumpConfig(const LoadedConfig& loaded);

// Reads YAML text (`file_name` only appears in messages) on top of nothing; exposed for tests and fuzzing.
absl::Status ApplyYaml(absl::string_view text, absl::string_view file_name, LoadedConfig* loaded);

}  // namespace baton

#endif  // BATON_COMMON_CONFIG_H_
