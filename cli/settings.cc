#include "cli/settings.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace baton::cli {

std::vector<std::string> FlagsFor(const LoadedConfig& loaded, const std::set<std::string>& without) {
  using google::protobuf::FieldDescriptor;
  std::vector<std::string> flags;
  const auto* descriptor = v1::Config::descriptor();
  const auto* reflection = loaded.config.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const auto origin = loaded.origins.find(field->name());
    if (origin == loaded.origins.end() || origin->second == "default" || without.count(field->name()) > 0) continue;
    std::string value;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        value = reflection->GetBool(loaded.config, field) ? "true" : "false";
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        value = absl::StrCat(reflection->GetUInt32(loaded.config, field));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        value = absl::StrCat(reflection->GetUInt64(loaded.config, field));
        break;
      default:
        value = reflection->GetString(loaded.config, field);
    }
    flags.push_back(absl::StrCat("--", absl::StrReplaceAll(field->name(), {{"_", "-"}}), "=", value));
  }
  return flags;
}

std::string SettingsHelp(const std::vector<std::string>& fields) {
  std::string help = "Settings (also as BATON_<NAME> in the environment, or in a YAML file named by --config):\n";
  for (const ConfigFieldInfo& field : ConfigFields()) {
    if (!fields.empty() && std::find(fields.begin(), fields.end(), field.name) == fields.end()) continue;
    std::string left = absl::StrCat("  ", field.flag, field.type == "boolean" ? "" : absl::StrCat(" ", field.type));
    left.resize(std::max<size_t>(left.size() + 2, 30), ' ');
    absl::StrAppend(&help, left, field.help, "\n");
  }
  return help;
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace baton::cli
