// The `baton` command. Exit codes: 0 done, 1 it failed, 2 wrong usage or configuration, 130 interrupted.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/nearest.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "common/config.h"
#include "common/version.h"

namespace baton::cli {
namespace {

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Before anything is parsed, for CLI11 only says that a command is missing.
absl::Status CheckCommandWords(const CLI::App& root, const std::vector<std::string>& args) {
  const CLI::App* app = &root;
  for (const std::string& word : args) {
    if (Commands(*app).empty() || (!word.empty() && word[0] == '-')) return absl::OkStatus();
    const CLI::App* next = nullptr;
    std::vector<std::string> names;
    for (const CLI::App* sub : Commands(*app)) {
      names.push_back(sub->get_name());
      if (sub->get_name() == word) next = sub;
    }
    if (next == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no command \"", word.substr(0, 60), "\"", DidYouMean(word, names)));
    }
    app = next;
  }
  return absl::OkStatus();
}

// In words of our own: CLI11 lists what is left over in reverse.
absl::Status UnknownArgument(const CLI::App& root, bool takes_settings) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  std::vector<std::string> flags;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  if (takes_settings) {
    for (const ConfigFieldInfo& field : ConfigFields()) flags.push_back(field.flag);
  }
  const std::vector<std::string> left = root.remaining(/*recurse=*/true);
  for (const std::string& arg : left) {
    if (arg.rfind("--", 0) != 0) continue;
    const std::string flag = arg.substr(0, arg.find('='));
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ", flag, DidYouMean(flag, flags)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument \"", left.empty() ? "" : left.front(), "\" (quote a prompt that has spaces)"));
}

// The parser stops at an error, so whether --json was meant is read off the words themselves.
bool WantsJson(const std::vector<std::string>& args) {
  return std::find(args.begin(), args.end(), "--json") != args.end();
}

int Main(int argc, char** argv) {
  CLI::App app{"Baton serves a language model with prefill and decode on separate workers.", "baton"};
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("baton ", kVersion));
  app.footer(
      "Examples:\n"
      "  baton up --model FILE.gguf            start a cluster on this machine\n"
      "  baton complete --chat \"Hello\"        one answer, in another terminal\n"
      "  baton bench --concurrency 1,2,4,8     how fast it is\n"
      "  baton doctor                          what is wrong, and what to do next\n"
      "  baton COMMAND --help                  a command's flags and settings, with examples\n\n"
      "Words for people go to stderr, data to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
  Invocation invocation;
  invocation.argv0 = argc > 0 ? argv[0] : "baton";
  AddUp(&app, &invocation);
  AddComplete(&app, &invocation);
  AddChat(&app, &invocation);
  AddStatus(&app, &invocation);
  AddScale(&app, &invocation);
  AddDrain(&app, &invocation);
  AddRole(&app, &invocation);
  AddBench(&app, &invocation);
  AddDoctor(&app, &invocation);
  AddInspect(&app, &invocation);
  AddPlan(&app, &invocation);
  AddTokenize(&app, &invocation);
  AddConfig(&app, &invocation);
  AddCompletion(&app, &invocation);
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  if (absl::Status known = CheckCommandWords(app, args); !known.ok()) {
    return Output(WantsJson(args)).Fail(known, "baton --help", kExitUsage);
  }
  const bool takes_settings = !args.empty() && TakesSettings(args[0]);
  if (takes_settings) {
    auto [settings, rest] = SplitConfigFlags(args);
    invocation.setting_args = std::move(settings);
    args = std::move(rest);
  }
  try {
    std::reverse(args.begin(), args.end());  // as CLI11 wants them
    app.parse(args);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    absl::Status status = absl::InvalidArgumentError(error.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) status = UnknownArgument(app, takes_settings);
    const auto used = app.get_subcommands();
    const std::string command = used.empty() ? "" : absl::StrCat(used.front()->get_name(), " ");
    return Output(WantsJson({argv + 1, argv + argc}))
        .Fail(status, absl::StrCat("baton ", command, "--help"), kExitUsage);
  }
  return invocation.run ? invocation.run() : kExitUsage;
}

}  // namespace
}  // namespace baton::cli

int main(int argc, char** argv) { return baton::cli::Main(argc, argv); }
