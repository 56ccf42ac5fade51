// Completion scripts for shells, generated from the command tree that the parser itself uses.
//
// Thread contract: pure functions.
#ifndef BATON_CLI_COMPLETION_H_
#define BATON_CLI_COMPLETION_H_

#include <string>
#include <vector>

namespace baton::cli {

struct CompletionOption {
  std::vector<std::string> names;  // "--json", "-q"
  std::string help;
  bool takes_value = false;
};
struct CompletionCommand {
  std::string name;
  std::string help;
  std::vector<CompletionOption> options;
  std::vector<CompletionCommand> commands;
  std::vector<std::string> words;  // what its argument may be, when that is known
};

// To be sourced, or put into /etc/bash_completion.d; needs nothing of the bash-completion package.
std::string BashCompletion(const CompletionCommand& root);
// To be put as _baton into a folder of $fpath, or evaluated after compinit.
std::string ZshCompletion(const CompletionCommand& root);

}  // namespace baton::cli

#endif  // BATON_CLI_COMPLETION_H_
