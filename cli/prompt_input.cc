#include "cli/prompt_input.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxPromptBytes = 8 << 20;  // the router's message limit

absl::StatusOr<std::string> ReadStdin() {
  std::string text;
  char buffer[1 << 16];
  while (text.size() <= kMaxPromptBytes) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n == 0) {
      if (!text.empty() && text.back() == '\n') text.pop_back();
      return text;
    }
    if (n < 0 && errno != EINTR) return absl::UnavailableError("The prompt could not be read from stdin.");
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  return absl::InvalidArgumentError(absl::StrCat("The prompt on stdin is larger than ", kMaxPromptBytes, " bytes."));
}

}  // namespace

absl::StatusOr<std::string> PromptOrStdin(const std::optional<std::string>& argument) {
  if (argument.has_value() && *argument != "-") return *argument;
  if (argument.has_value() || ::isatty(STDIN_FILENO) != 1) return ReadStdin();
  return absl::InvalidArgumentError("No prompt was given, and stdin is a terminal.");
}

}  // namespace baton::cli
