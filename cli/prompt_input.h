// Text that is given as an argument or comes from stdin.
#ifndef BATON_CLI_PROMPT_INPUT_H_
#define BATON_CLI_PROMPT_INPUT_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace baton::cli {

// The argument, or all of stdin (without its last newline, which `echo` adds) when there is none or it is "-".
// INVALID_ARGUMENT when there is none and stdin is a terminal, or when it is larger than the router's message limit.
absl::StatusOr<std::string> PromptOrStdin(const std::optional<std::string>& argument);

}  // namespace baton::cli

#endif  // BATON_CLI_PROMPT_INPUT_H_
