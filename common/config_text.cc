// Settings as text for people: names, help, dump.
#include <google/protobuf/message.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config.h"
#include "common/config_fields.h"

namespace baton {

namespace config_internal {

const google::protobuf::FieldDescriptor* FindField(absl::string_view name) {
  return v1::Config::descriptor()->FindFieldByName(std::string(name));
}

std::string FlagName(absl::string_view field) { return absl::StrCat("--", absl::StrReplaceAll(field, {{"_", "-"}})); }
std::string EnvName(absl::string_view field) { return absl::StrCat("BATON_", absl::AsciiStrToUpper(field)); }

}  // namespace config_internal

namespace {

using config_internal::EnvName;
using config_internal::FindField;
using config_internal::FlagName;
using google::protobuf::FieldDescriptor;

// Generated from the comments of proto/config.proto.
struct HelpText {
  const char* name;
  const char* text;
};
constexpr HelpText kHelp[] = {
#include "common/config_help.inc"
};

const char* TypeName(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "boolean";
    case FieldDescriptor::CPPTYPE_STRING:
      return "string";
    default:
      return "integer";
  }
}

}  // namespace

std::vector<ConfigFieldInfo> ConfigFields() {
  std::vector<ConfigFieldInfo> fields;
  const auto* descriptor = v1::Config::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    ConfigFieldInfo info{field->name(), FlagName(field->name()), EnvName(field->name()), TypeName(field), ""};
    for (const HelpText& help : kHelp) {
      if (field->name() == help.name) info.help = help.text;
    }
    fields.push_back(std::move(info));
  }
  return fields;
}

std::string ConfigHelp() {
  std::string out = "  --config FILE               YAML file with settings (name: value)\n";
  for (const ConfigFieldInfo& field : ConfigFields()) {
    std::string left = absl::StrCat("  ", field.flag, field.type == "boolean" ? "" : absl::StrCat(" ", field.type));
    left.resize(std::max<size_t>(left.size() + 2, 30), ' ');
    absl::StrAppend(&out, left, field.help, "\n");
  }
  return out;
}

std::string DumpConfig(const LoadedConfig& loaded) {
  std::string out;
  const auto* reflection = loaded.config.GetReflection();
  for (const ConfigFieldInfo& info : ConfigFields()) {
    const FieldDescriptor* field = FindField(info.name);
    if (!reflection->HasField(loaded.config, field)) {
      absl::StrAppend(&out, "# ", info.name, ": unset\n");
      continue;
    }
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
        value = absl::StrCat("'", absl::StrReplaceAll(reflection->GetString(loaded.config, field), {{"'", "''"}}), "'");
    }
    const auto origin = loaded.origins.find(info.name);
    absl::StrAppend(&out, info.name, ": ", value, "  # ", origin == loaded.origins.end() ? "?" : origin->second, "\n");
  }
  return out;
}

}  // namespace baton
