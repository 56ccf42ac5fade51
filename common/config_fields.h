// Names of a setting in its three spellings, by the schema's descriptor.
#ifndef BATON_COMMON_CONFIG_FIELDS_H_
#define BATON_COMMON_CONFIG_FIELDS_H_

#include <google/protobuf/descriptor.h>

#include <string>

#include "absl/strings/string_view.h"

namespace baton::config_internal {

// Null when there is no such setting.
const google::protobuf::FieldDescriptor* FindField(absl::string_view name);
std::string FlagName(absl::string_view field);  // --max-context
std::string EnvName(absl::string_view field);   // BATON_MAX_CONTEXT

}  // namespace baton::config_internal

#endif  // BATON_COMMON_CONFIG_FIELDS_H_
