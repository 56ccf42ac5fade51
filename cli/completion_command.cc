// `baton completion bash|zsh`.
#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/output.h"
#include "cli/settings.h"

namespace baton::cli {
namespace {

CompletionCommand DescribeCommand(const CLI::App& app, bool takes_settings) {
  CompletionCommand command{.name = app.get_name(), .help = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    CompletionOption described{.help = option->get_description(), .takes_value = option->get_items_expected_max() > 0};
    for (const std::string& name : option->get_lnames()) described.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) described.names.push_back("-" + name);
    if (!described.names.empty()) command.options.push_back(std::move(described));
  }
  if (takes_settings) {
    for (const ConfigFieldInfo& field : ConfigFields()) {
      command.options.push_back({{field.flag}, field.help, field.type != "boolean"});
    }
    command.options.push_back({{"--config"}, "A YAML file with settings", true});
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    command.commands.push_back(DescribeCommand(*sub, takes_settings || TakesSettings(sub->get_name())));
  }
  if (app.get_name() == "completion") command.words = {"bash", "zsh"};
  return command;
}

}  // namespace

void AddCompletion(CLI::App* app, Invocation* invocation) {
  auto shell = std::make_shared<std::string>();
  CLI::App* sub = app->add_subcommand("completion", "Print a completion script for bash or zsh");
  sub->add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  sub->footer(HelpFooter({"source <(baton completion bash)", "baton completion zsh > ~/.zfunc/_baton"}, {}));
  sub->callback([app, shell, invocation] {
    invocation->run = [app, shell] {
      CompletionCommand root = DescribeCommand(*app, false);
      root.name = "baton";
      Output(false).Data(*shell == "bash" ? BashCompletion(root) : ZshCompletion(root));
      return kExitOk;
    };
  });
}

}  // namespace baton::cli
