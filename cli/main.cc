// The `baton` command. Exit codes: 0 done, 1 it failed, 2 wrong usage or configuration, 130 interrupted.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/output.h"
#include "common/config.h"

namespace baton::cli {
namespace {

// The others have flags that are spelled as settings and mean something else (`plan --kv-dtype`).
bool TakesSettings(absl::string_view command) {
  return command == "up" || command == "complete" || command == "chat" || command == "status" || command == "bench";
}

// In words of our own: CLI11 lists what is left over in reverse.
absl::Status UnknownArgument(const CLI::App& app, bool takes_settings) {
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  for (const std::string& arg : left) {
    if (arg.rfind("--", 0) != 0) continue;
    // The settings know which of theirs is nearest.
    if (takes_settings) return LoadConfig(ProcessRole::kCommand, {arg}, {}).status();
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ", arg));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument \"", left.empty() ? "" : left.front(), "\" (quote a prompt that has spaces)"));
}

int Main(int argc, char** argv) {
  CLI::App app{"Baton serves a language model with prefill and decode on separate workers.", "baton"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "baton 0.1.0");
  app.footer(
      "Start with:  baton up --model FILE.gguf   then, in another terminal:  baton complete \"Hello\"\n"
      "Words for people go to stderr, data to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
  Invocation invocation;
  invocation.argv0 = argc > 0 ? argv[0] : "baton";
  AddUp(&app, &invocation);
  AddComplete(&app, &invocation);
  AddChat(&app, &invocation);
  AddStatus(&app, &invocation);
  AddBench(&app, &invocation);
  AddInspect(&app, &invocation);
  AddPlan(&app, &invocation);
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
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
    // The parser stops at the error, so whether --json was meant is read off the words themselves.
    bool json = false;
    for (int i = 1; i < argc; ++i) json = json || absl::string_view(argv[i]) == "--json";
    absl::Status status = absl::InvalidArgumentError(error.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) status = UnknownArgument(app, takes_settings);
    const auto used = app.get_subcommands();
    const std::string command = used.empty() ? "" : absl::StrCat(used.front()->get_name(), " ");
    return Output(json).Fail(status, absl::StrCat("baton ", command, "--help"), kExitUsage);
  }
  return invocation.run ? invocation.run() : kExitUsage;
}

}  // namespace
}  // namespace baton::cli

int main(int argc, char** argv) { return baton::cli::Main(argc, argv); }
