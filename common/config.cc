#include "common/config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config_fields.h"
#include "common/config_yaml.h"

extern char** environ;

namespace baton {
namespace {

using config_internal::EnvName;
using config_internal::FindField;
using config_internal::FlagName;
using google::protobuf::FieldDescriptor;

// The one table of defaults and accepted values. A null default: none, or decided where the setting is used (see the
// schema's comment).
struct Rule {
  const char* name;
  const char* for_router;  // also for commands
  const char* for_worker;
  uint64_t min = 0;  // of integers
  uint64_t max = 0;
  const char* choices = nullptr;  // of strings, separated by spaces
};
constexpr uint64_t kDayMs = 24ull * 3600 * 1000;
constexpr Rule kRules[] = {
    {"model", nullptr, nullptr},
    {"served_model_name", nullptr, nullptr},
    {"max_context", nullptr, nullptr, 16, 1 << 20},
    {"block_size", "16", "16", 1, 256},
    {"kv_memory_mib", "512", "512", 1, 1 << 30},
    {"kv_dtype", nullptr, nullptr, 0, 0, "f32 f16 bf16"},  // follows numerics: ApplyDefaults
    {"numerics", "int", "int", 0, 0, "int bf16 f32 fp8"},
    {"isa", "auto", "auto", 0, 0, "auto scalar avx2 avx512 avx512_bf16 amx cuda"},
    {"threads", nullptr, nullptr, 1, 1024},
    {"weight_layout", "auto", "auto", 0, 0, "auto decode prefill both"},
    {"cores", nullptr, nullptr},
    {"tensor_parallel", "1", "1", 1, 32},
    {"reduction_slices", nullptr, nullptr, 1, 32},  // follows tensor_parallel
    {"max_batch_tokens", "512", "512", 1, 1 << 16},
    {"max_sequences", "64", "64", 1, 4096},
    {"prefix_cache", "true", "true"},
    {"max_queue", "1024", "1024", 1, 1 << 20},
    {"mixed_batch_tokens", nullptr, nullptr, 2, 1 << 16},
    {"name", nullptr, nullptr},
    {"listen", "127.0.0.1:50051", "127.0.0.1:0"},
    {"http", "127.0.0.1:8000", "127.0.0.1:0"},
    {"http_max_connections", "1024", "1024", 1, 1 << 16},
    {"http_tls_cert", nullptr, nullptr},
    {"http_tls_key", nullptr, nullptr},
    {"tool_format", "auto", "auto", 0, 0, "auto hermes llama3 none"},
    {"console", "view", "view", 0, 0, "off view admin"},
    {"router", "127.0.0.1:50051", "127.0.0.1:50051"},
    {"log_level", "info", "info", 0, 0, "trace debug info warn error"},
    {"log_format", "text", "text", 0, 0, "text json"},
    {"kv_transport", "auto", "auto", 0, 0, "auto ucx grpc nccl loopback"},
    {"kv_lease_ms", "30000", "30000", 100, kDayMs},
    {"cluster_key_file", nullptr, nullptr},
    {"kv_network_trusted", "false", "false"},
    {"kv_block_tags", "false", "false"},
    {"kv_history", "true", "true"},
    {"kv_listen", nullptr, nullptr},
    {"kv_link_floor_mb_s", "0", "0", 0, 1 << 30},
    {"kv_link_below_floor", "warn", "warn", 0, 0, "warn refuse"},
    {"tls_dir", nullptr, nullptr},
    {"tls_cert", nullptr, nullptr},
    {"tls_key", nullptr, nullptr},
    {"tls_ca", nullptr, nullptr},
    {"tls_require_client_cert", "true", "true"},
    {"tls_reload_s", "60", "60", 1, 86400},
    {"allow_plaintext", "false", "false"},
    {"membership", "embedded", "embedded", 0, 0, "embedded etcd kubernetes"},
    {"advertise", nullptr, nullptr},
    {"etcd_endpoints", "127.0.0.1:2379", "127.0.0.1:2379"},
    {"etcd_prefix", "/baton", "/baton"},
    {"etcd_lease_s", "10", "10", 2, 3600},
    {"etcd_tls_ca", nullptr, nullptr},
    {"etcd_tls_cert", nullptr, nullptr},
    {"etcd_tls_key", nullptr, nullptr},
    {"kubernetes_service", nullptr, nullptr},
    {"kubernetes_port", "grpc", "grpc"},
    {"kubernetes_api", nullptr, nullptr},
    {"kubernetes_credentials", "/var/run/secrets/kubernetes.io/serviceaccount",
     "/var/run/secrets/kubernetes.io/serviceaccount"},
    {"heartbeat_ms", "250", "250", 10, 60000},
    {"worker_timeout_ms", "1500", "1500", 100, kDayMs},
    {"drain_timeout_ms", "30000", "30000", 0, kDayMs},
    {"default_deadline_ms", "600000", "600000", 1, kDayMs},
    {"engine_stall_ms", "300000", "300000", 0, kDayMs},
    {"role_dwell_ms", "10000", "10000", 0, kDayMs},
    {"exit_with_parent", "false", "false"},
    {"mode", "auto", "auto", 0, 0, "auto disaggregated aggregated"},
    {"warm_up", "true", "true"},
    {"placement", "cost", "cost", 0, 0, "cost round_robin random least_loaded"},
    {"max_queue_tokens", "1048576", "1048576", 1, 1ull << 40},
    {"queue_timeout_ms", "30000", "30000", 0, kDayMs},
    {"prefill_backlog_tokens", "4096", "4096", 1, 1ull << 40},
    {"ttft_slo_ms", "0", "0", 0, kDayMs},
    {"itl_slo_ms", "0", "0", 0, kDayMs},
    {"api_keys_file", nullptr, nullptr},
    {"api_key_file", nullptr, nullptr},
    {"tenant_requests_per_minute", "0", "0", 0, 1 << 30},
    {"tenant_tokens_per_minute", "0", "0", 0, 1ull << 40},
    {"tenant_concurrency", "0", "0", 0, 1 << 20},
    {"auto_roles", "false", "false"},
    {"otlp_endpoint", nullptr, nullptr},
    {"otlp_tls_ca", nullptr, nullptr},
    {"trace_permille", "1000", "1000", 0, 1000},
    {"vllm_engine", "true", "true"},
    {"prefill", "1", "1", 0, 64},
    {"decode", "1", "1", 1, 64},
};

const Rule* FindRule(absl::string_view name) {
  for (const Rule& rule : kRules) {
    if (name == rule.name) return &rule;
  }
  return nullptr;
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::pair<std::string, int> NearestField(absl::string_view name) {
  name = name.substr(0, 64);
  std::pair<std::string, int> best("", 1 << 20);
  for (const Rule& rule : kRules) {
    const int distance = EditDistance(name, rule.name);
    if (distance < best.second) best = {rule.name, distance};
  }
  return best;
}

absl::Status BadValue(const FieldDescriptor* field, absl::string_view value, absl::string_view origin,
                      absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(origin, ": ", field->name(), " is \"",
                                                 absl::StrReplaceAll(value.substr(0, 80), {{"\n", "\\n"}}),
                                                 "\"; expected ", expected));
}

std::optional<bool> ParseBool(absl::string_view value) {
  const std::string v = absl::AsciiStrToLower(value);
  if (v == "true" || v == "1" || v == "yes" || v == "on") return true;
  if (v == "false" || v == "0" || v == "no" || v == "off") return false;
  return std::nullopt;
}

absl::Status SetField(const FieldDescriptor* field, absl::string_view value, const std::string& origin,
                      LoadedConfig* loaded) {
  const Rule* rule = FindRule(field->name());
  if (rule == nullptr) return absl::InternalError(absl::StrCat("no rule for setting ", field->name()));
  const auto* reflection = loaded->config.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: {
      const std::optional<bool> parsed = ParseBool(value);
      if (!parsed.has_value()) return BadValue(field, value, origin, "true or false");
      reflection->SetBool(&loaded->config, field, *parsed);
      break;
    }
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t parsed = 0;
      if (!absl::SimpleAtoi(value, &parsed) || parsed < rule->min || parsed > rule->max) {
        return BadValue(field, value, origin, absl::StrCat("a whole number from ", rule->min, " to ", rule->max));
      }
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
        reflection->SetUInt32(&loaded->config, field, static_cast<uint32_t>(parsed));
      } else {
        reflection->SetUInt64(&loaded->config, field, parsed);
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      if (value.empty()) return BadValue(field, value, origin, "text that is not empty");
      if (value.size() > 4096 || absl::StrContains(value, absl::string_view("\0", 1))) {
        return BadValue(field, value, origin, "at most 4096 bytes without a zero byte");
      }
      if (rule->choices != nullptr) {
        const std::vector<std::string> choices = absl::StrSplit(rule->choices, ' ');
        if (std::find(choices.begin(), choices.end(), std::string(value)) == choices.end()) {
          return BadValue(field, value, origin, absl::StrCat("one of ", absl::StrJoin(choices, ", ")));
        }
      }
      reflection->SetString(&loaded->config, field, std::string(value));
      break;
    }
    default:
      return absl::InternalError(absl::StrCat("setting ", field->name(), " has a type without a spelling"));
  }
  loaded->origins[field->name()] = origin;
  return absl::OkStatus();
}

struct FlagValue {
  std::string name;  // as a field
  std::optional<std::string> value;
};

// "--max-context=3" to {max_context, 3}.
FlagValue ParseFlag(absl::string_view arg) {
  arg.remove_prefix(2);
  FlagValue flag;
  const size_t equals = arg.find('=');
  if (equals != absl::string_view::npos) flag.value = std::string(arg.substr(equals + 1));
  flag.name = absl::StrReplaceAll(arg.substr(0, equals), {{"-", "_"}});
  return flag;
}

// The field a flag sets, with --no-x for booleans; null when there is none.
const FieldDescriptor* FieldOfFlag(const FlagValue& flag, bool* negated) {
  *negated = false;
  if (const FieldDescriptor* field = FindField(flag.name)) return field;
  if (!absl::StartsWith(flag.name, "no_")) return nullptr;
  const FieldDescriptor* field = FindField(flag.name.substr(3));
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_BOOL) return nullptr;
  *negated = true;
  return field;
}

struct Flags {
  std::string config_file;
  std::vector<std::pair<const FieldDescriptor*, std::string>> values;
};

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args) {
  Flags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!absl::StartsWith(args[i], "--") || args[i].size() == 2) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", args[i].substr(0, 80),
                                                     "\"; settings are written --name=value (see --help)"));
    }
    FlagValue flag = ParseFlag(args[i]);
    bool negated = false;
    const FieldDescriptor* field = FieldOfFlag(flag, &negated);
    const bool is_config = flag.name == "config";
    if (field == nullptr && !is_config) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", absl::StrReplaceAll(flag.name, {{"_", "-"}}),
                                                     "; did you mean ", FlagName(NearestField(flag.name).first),
                                                     "? (--help lists all)"));
    }
    if (!flag.value.has_value()) {
      const bool is_bool = field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
      if (is_bool) {
        flag.value = "true";
      } else if (i + 1 < args.size() && !absl::StartsWith(args[i + 1], "--")) {
        flag.value = args[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("flag ", args[i], " needs a value: ", args[i], "=..."));
      }
    }
    if (is_config) {
      flags.config_file = *flag.value;
    } else if (negated) {
      const std::optional<bool> value = ParseBool(*flag.value);
      if (!value.has_value()) return BadValue(field, *flag.value, absl::StrCat("flag ", args[i]), "true or false");
      flags.values.emplace_back(field, *value ? "false" : "true");
    } else {
      flags.values.emplace_back(field, *flag.value);
    }
  }
  return flags;
}

absl::Status ApplyFile(const std::string& path, LoadedConfig* loaded) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("settings file ", path, " cannot be opened; check the path given by --config or BATON_CONFIG"));
  }
  std::string text(kMaxYamlBytes + 1, '\0');
  file.read(text.data(), text.size());
  text.resize(file.gcount());
  return ApplyYaml(text, path, loaded);
}

absl::Status ApplyEnvironment(const std::map<std::string, std::string>& env, LoadedConfig* loaded) {
  for (const auto& [name, value] : env) {
    if (!absl::StartsWith(name, "BATON_")) continue;
    const std::string field_name = absl::AsciiStrToLower(name.substr(6));
    const FieldDescriptor* field = FindField(field_name);
    if (field == nullptr || EnvName(field->name()) != name) {
      // Not an error: container platforms add variables such as BATON_SERVICE_HOST for a service called baton.
      const auto [nearest, distance] = NearestField(field_name);
      if (distance <= 2) {
        loaded->warnings.push_back(
            absl::StrCat("environment variable ", name, " is no setting; did you mean ", EnvName(nearest), "?"));
      }
      continue;
    }
    if (absl::Status s = SetField(field, value, absl::StrCat("environment ", name), loaded); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ApplyDefaults(ProcessRole role, LoadedConfig* loaded) {
  const auto* reflection = loaded->config.GetReflection();
  for (const Rule& rule : kRules) {
    const FieldDescriptor* field = FindField(rule.name);
    const char* value = role == ProcessRole::kWorker ? rule.for_worker : rule.for_router;
    if (absl::string_view(rule.name) == "kv_dtype") value = loaded->config.numerics() == "f32" ? "f32" : "f16";
    if (field == nullptr || value == nullptr || reflection->HasField(loaded->config, field)) continue;
    if (absl::Status s = SetField(field, value, "default", loaded); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

bool LoadedConfig::has_flag(absl::string_view field) const {
  const auto it = origins.find(std::string(field));
  return it != origins.end() && absl::StartsWith(it->second, "flag ");
}

absl::Status ApplyYaml(absl::string_view text, absl::string_view file_name, LoadedConfig* loaded) {
  absl::StatusOr<std::vector<YamlEntry>> entries = ParseFlatYaml(text, file_name);
  if (!entries.ok()) return entries.status();
  for (const YamlEntry& entry : *entries) {
    const std::string where = absl::StrCat("file ", file_name, ":", entry.line);
    const FieldDescriptor* field = FindField(entry.key);
    if (field == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": unknown setting \"", entry.key.substr(0, 80),
                                                     "\"; did you mean ", NearestField(entry.key).first, "?"));
    }
    if (absl::Status s = SetField(field, entry.value, where, loaded); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedConfig> LoadConfig(ProcessRole role, const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& env) {
  absl::StatusOr<Flags> flags = ParseFlags(args);
  if (!flags.ok()) return flags.status();
  LoadedConfig loaded;
  std::string file = flags->config_file;
  if (const auto it = env.find("BATON_CONFIG"); file.empty() && it != env.end()) file = it->second;
  if (!file.empty()) {
    if (absl::Status s = ApplyFile(file, &loaded); !s.ok()) return s;
  }
  if (absl::Status s = ApplyEnvironment(env, &loaded); !s.ok()) return s;
  for (const auto& [field, value] : flags->values) {
    const std::string origin = absl::StrCat("flag ", FlagName(field->name()));
    if (absl::Status s = SetField(field, value, origin, &loaded); !s.ok()) return s;
  }
  if (absl::Status s = ApplyDefaults(role, &loaded); !s.ok()) return s;
  return loaded;
}

absl::StatusOr<LoadedConfig> LoadConfig(ProcessRole role, int argc, char** argv) {
  return LoadConfig(role, std::vector<std::string>(argv + std::min(argc, 1), argv + argc), BatonEnvironment());
}

std::map<std::string, std::string> BatonEnvironment() {
  std::map<std::string, std::string> env;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const absl::string_view entry(*e);
    const size_t equals = entry.find('=');
    if (!absl::StartsWith(entry, "BATON_") || equals == absl::string_view::npos) continue;
    env[std::string(entry.substr(0, equals))] = std::string(entry.substr(equals + 1));
  }
  return env;
}

std::pair<std::vector<std::string>, std::vector<std::string>> SplitConfigFlags(const std::vector<std::string>& args) {
  std::pair<std::vector<std::string>, std::vector<std::string>> split;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {  // everything after it is the command's
      split.second.insert(split.second.end(), args.begin() + i, args.end());
      break;
    }
    const bool is_flag = absl::StartsWith(args[i], "--") && args[i].size() > 2;
    const FlagValue flag = is_flag ? ParseFlag(args[i]) : FlagValue();
    bool negated = false;
    const FieldDescriptor* field = is_flag ? FieldOfFlag(flag, &negated) : nullptr;
    if (field == nullptr && !(is_flag && flag.name == "config")) {
      split.second.push_back(args[i]);
      continue;
    }
    split.first.push_back(args[i]);
    const bool is_bool = field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    if (!is_bool && !flag.value.has_value() && i + 1 < args.size()) split.first.push_back(args[++i]);
  }
  return split;
}

}  // namespace baton
