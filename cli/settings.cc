#include "cli/settings.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace baton::cli {
namespace {

using google::protobuf::FieldDescriptor;

std::string ValueText(const v1::Config& config, const FieldDescriptor* field) {
  const auto* reflection = config.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(config, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(reflection->GetUInt32(config, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection->GetUInt64(config, field));
    default:
      return reflection->GetString(config, field);
  }
}

}  // namespace

std::vector<std::string> FlagsFor(const LoadedConfig& loaded, const std::set<std::string>& without) {
  std::vector<std::string> flags;
  const auto* descriptor = v1::Config::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const auto origin = loaded.origins.find(field->name());
    if (origin == loaded.origins.end() || origin->second == "default" || without.count(field->name()) > 0) continue;
    flags.push_back(
        absl::StrCat("--", absl::StrReplaceAll(field->name(), {{"_", "-"}}), "=", ValueText(loaded.config, field)));
  }
  return flags;
}

std::string SettingText(const v1::Config& config, const std::string& field) {
  const FieldDescriptor* descriptor = v1::Config::descriptor()->FindFieldByName(field);
  if (descriptor == nullptr || !config.GetReflection()->HasField(config, descriptor)) return "";
  return ValueText(config, descriptor);
}

bool TakesSettings(absl::string_view command) {
  for (const char* name : {"up", "complete", "chat", "status", "bench", "doctor", "config", "tokenize", "detokenize", "scale",
                           "drain", "role"}) {
    if (command == name) return true;
  }
  return false;
}

std::string HelpFooter(const std::vector<std::string>& examples, const std::vector<std::string>& fields) {
  std::string text = examples.size() == 1 ? "Example:\n" : "Examples:\n";
  for (const std::string& example : examples) absl::StrAppend(&text, "  ", example, "\n");
  if (!fields.empty()) absl::StrAppend(&text, "\n", SettingsHelp(fields));
  return text;
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
