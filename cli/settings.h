// Settings (common/config.h) as the commands use them.
#ifndef BATON_CLI_SETTINGS_H_
#define BATON_CLI_SETTINGS_H_

#include <set>
#include <string>
#include <vector>

#include "common/config.h"

namespace baton::cli {

// Flags that give another process the settings of `loaded` that somebody set, without those in `without`.
std::vector<std::string> FlagsFor(const LoadedConfig& loaded, const std::set<std::string>& without);

// Help text of the settings named, one line each; all of them when `fields` is empty.
std::string SettingsHelp(const std::vector<std::string>& fields);

// Cores this process may use.
int AvailableCores();

}  // namespace baton::cli

#endif  // BATON_CLI_SETTINGS_H_
