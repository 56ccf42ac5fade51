// How a command plugs into `baton`: it adds a CLI11 subcommand whose callback stores what to run, so that nothing runs
// before the whole command line was understood.
#ifndef BATON_CLI_COMMAND_H_
#define BATON_CLI_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace baton::cli {

struct Invocation {
  std::function<int()> run;  // returns the exit code
  std::string argv0;         // to find the other programs next to this one
  bool json = false;
  std::vector<std::string> setting_args;  // flags of common/config.h, for the commands that take settings
};

// Each adds one subcommand. `invocation` outlives `app`.
void AddPlan(CLI::App* app, Invocation* invocation);
void AddInspect(CLI::App* app, Invocation* invocation);
void AddUp(CLI::App* app, Invocation* invocation);
void AddComplete(CLI::App* app, Invocation* invocation);
void AddChat(CLI::App* app, Invocation* invocation);
void AddStatus(CLI::App* app, Invocation* invocation);
void AddScale(CLI::App* app, Invocation* invocation);
void AddDrain(CLI::App* app, Invocation* invocation);
void AddRole(CLI::App* app, Invocation* invocation);
void AddBench(CLI::App* app, Invocation* invocation);
void AddDoctor(CLI::App* app, Invocation* invocation);
void AddConfig(CLI::App* app, Invocation* invocation);
void AddTokenize(CLI::App* app, Invocation* invocation);  // tokenize, detokenize, tokenizer
void AddCompletion(CLI::App* app, Invocation* invocation);

}  // namespace baton::cli

#endif  // BATON_CLI_COMMAND_H_
