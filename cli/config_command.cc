// `baton config dump` and `baton config check`: what the settings are, where each came from, and whether a process
// could start with them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/output.h"
#include "common/read_file.h"
#include "cli/settings.h"
#include "common/config.h"
#include "common/rpc/server.h"

namespace baton::cli {
namespace {

struct ConfigFlags {
  std::string role = "command";
};

ProcessRole RoleOf(const std::string& role) {
  return role == "router" ? ProcessRole::kRouter : role == "worker" ? ProcessRole::kWorker : ProcessRole::kCommand;
}

nlohmann::ordered_json SettingsToJson(const LoadedConfig& loaded) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::array();
  for (const ConfigFieldInfo& field : ConfigFields()) {
    const auto origin = loaded.origins.find(field.name);
    if (origin == loaded.origins.end()) continue;
    settings.push_back({{"name", field.name},
                        {"value", ToUtf8(SettingText(loaded.config, field.name))},
                        {"origin", ToUtf8(origin->second)}});
  }
  return {{"settings", std::move(settings)}, {"warnings", loaded.warnings}};
}

// What reading the settings alone does not tell. Empty: nothing is wrong.
std::vector<std::string> Problems(const v1::Config& config) {
  std::vector<std::string> problems;
  if (config.has_model() && ::access(config.model().c_str(), R_OK) != 0) {
    problems.push_back(absl::StrCat("model: cannot read ", config.model(), ": ", std::strerror(errno)));
  }
  if (config.has_cluster_key_file()) {
    const absl::StatusOr<std::string> key = ReadSmallFile(config.cluster_key_file(), 1 << 20);
    if (!key.ok()) {
      problems.push_back(absl::StrCat("cluster_key_file: ", key.status().message()));
    } else if (key->size() < 32) {
      problems.push_back(absl::StrCat("cluster_key_file: ", config.cluster_key_file(), " has ", key->size(),
                                      " bytes; 32 or more sign tickets"));
    }
  }
  for (const auto& [name, address] :
       {std::pair{"listen", config.listen()}, std::pair{"http", config.http()}, std::pair{"router", config.router()}}) {
    if (address.empty()) continue;
    if (const auto parsed = rpc::ParseHostPort(address); !parsed.ok()) {
      problems.push_back(absl::StrCat(name, ": ", parsed.status().message()));
    }
  }
  return problems;
}

int RunConfig(const ConfigFlags& flags, bool check, const Invocation& invocation) {
  const Output out(invocation.json);
  const std::string help = absl::StrCat("baton config ", check ? "check" : "dump", " --help");
  const absl::StatusOr<LoadedConfig> loaded =
      LoadConfig(RoleOf(flags.role), invocation.setting_args, BatonEnvironment());
  if (!loaded.ok()) return out.Fail(loaded.status(), help, kExitUsage);
  for (const std::string& warning : loaded->warnings) out.Note(absl::StrCat("warning: ", Printable(warning)));
  if (!check) {
    if (out.json()) {
      out.Json(SettingsToJson(*loaded));
    } else {
      out.Data(DumpConfig(*loaded));
    }
    return kExitOk;
  }
  const std::vector<std::string> problems = Problems(loaded->config);
  if (!problems.empty()) {
    for (size_t i = 1; i < problems.size(); ++i) out.Note(absl::StrCat("also: ", Printable(problems[i])));
    return out.Fail(absl::InvalidArgumentError(problems[0]), "baton config dump  (shows where each value came from)",
                    kExitUsage);
  }
  if (out.json()) {
    nlohmann::ordered_json json = SettingsToJson(*loaded);
    json["ok"] = true;
    out.Json(json);
  } else {
    out.Data(absl::StrCat("The settings are in order", loaded->warnings.empty() ? "" : ", with warnings", ".\n"));
  }
  return kExitOk;
}

}  // namespace

void AddConfig(CLI::App* app, Invocation* invocation) {
  CLI::App* config = app->add_subcommand("config", "The settings: what they are and where each came from");
  config->require_subcommand(1);
  config->footer(HelpFooter({"baton config dump", "baton config check --config baton.yaml --role worker"}, {}));
  for (const bool check : {false, true}) {
    auto flags = std::make_shared<ConfigFlags>();
    CLI::App* sub = check ? config->add_subcommand("check", "Whether a process could start with them")
                          : config->add_subcommand("dump", "Each value and where it came from, as YAML");
    sub->add_option("--role", flags->role, "router, worker or command (default): some defaults differ")
        ->check(CLI::IsMember({"router", "worker", "command"}));
    sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
    sub->footer(HelpFooter({check ? "baton config check --config baton.yaml"
                                  : "BATON_THREADS=2 baton config dump --role worker --max-context 2048"},
                           {}));
    sub->callback([flags, check, invocation] {
      invocation->run = [flags, check, invocation] { return RunConfig(*flags, check, *invocation); };
    });
  }
}

}  // namespace baton::cli
