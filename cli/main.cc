// The `baton` command. Exit codes: 0 done, 1 it failed, 2 wrong usage or configuration, 130 interrupted.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/output.h"

namespace baton::cli {
namespace {

int Main(int argc, char** argv) {
  CLI::App app{"Baton serves a language model with prefill and decode on separate workers.", "baton"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "baton 0.1.0");
  app.footer(
      "Start with:  baton up --model FILE.gguf   then, in another terminal:  baton complete \"Hello\"\n"
      "Words for people go to stderr, data to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
  Invocation invocation;
  invocation.argv0 = argc > 0 ? argv[0] : "baton";
  AddPlan(&app, &invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    // The parser stops at the error, so whether --json was meant is read off the words themselves.
    bool json = false;
    for (int i = 1; i < argc; ++i) json = json || absl::string_view(argv[i]) == "--json";
    const auto used = app.get_subcommands();
    const std::string command = used.empty() ? "" : absl::StrCat(used.front()->get_name(), " ");
    return Output(json).Fail(absl::InvalidArgumentError(error.what()), absl::StrCat("baton ", command, "--help"),
                             kExitUsage);
  }
  return invocation.run ? invocation.run() : kExitUsage;
}

}  // namespace
}  // namespace baton::cli

int main(int argc, char** argv) { return baton::cli::Main(argc, argv); }
