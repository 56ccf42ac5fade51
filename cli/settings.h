// Settings (common/config.h) as the commands use them.
#ifndef BATON_CLI_SETTINGS_H_
#define BATON_CLI_SETTINGS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config.h"

namespace baton::cli {

// Flags that give another process the settings of `loaded` that somebody set, without those in `without`.
std::vector<std::string> FlagsFor(const LoadedConfig& loaded, const std::set<std::string>& without);

// The value of a setting as it would be written; "" when it is not set or there is none of that name.
std::string SettingText(const v1::Config& config, const std::string& field);

// Whether settings may be given to a command as flags. The others have flags that are spelled as settings and mean
// something else (`plan --kv-dtype`).
bool TakesSettings(absl::string_view command);

// The end of a command's help: how it is called, then the settings that matter to it.
std::string HelpFooter(const std::vector<std::string>& examples, const std::vector<std::string>& fields);

// Help text of the settings named, one line each; all of them when `fields` is empty.
std::string SettingsHelp(const std::vector<std::string>& fields);

// Cores this process may use.
int AvailableCores();

}  // namespace baton::cli

#endif  // BATON_CLI_SETTINGS_H_
