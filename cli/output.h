// What every command prints through: data on stdout, words on stderr, one form of error, the exit codes.
#ifndef BATON_CLI_OUTPUT_H_
#define BATON_CLI_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // it was asked properly and did not work
inline constexpr int kExitUsage = 2;          // a flag or a setting is wrong
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

enum class Style { kPlain, kBold, kDim, kRed, kGreen, kYellow };

// Thread contract: methods may be called from any thread; each writes in one piece.
class Output {
 public:
  // With `json`, Data and Note still work but commands print nothing but one JSON document on stdout.
  explicit Output(bool json);

  bool json() const { return json_; }
  bool stdout_is_tty() const { return stdout_tty_; }
  bool stderr_is_tty() const { return stderr_tty_; }

  // To stdout, as it is, flushed.
  void Data(absl::string_view text) const;
  // One document and a newline on stdout.
  void Json(const nlohmann::ordered_json& document) const;
  // To stderr, with a newline.
  void Note(absl::string_view line) const;
  // To stderr as it is, flushed (progress bars).
  void Raw(absl::string_view text) const;
  // "error: what and why" and "next: ..." on stderr; with --json also {"error": ...} on stdout. Returns `exit_code`.
  int Fail(const absl::Status& status, absl::string_view next, int exit_code) const;

  // `text` with terminal codes for stderr, when it is a terminal and NO_COLOR is not set.
  std::string Paint(Style style, absl::string_view text) const;

 private:
  const bool json_;
  bool stdout_tty_ = false;
  bool stderr_tty_ = false;
  bool color_ = false;
};

// Valid UTF-8 for JSON documents; each invalid byte becomes U+FFFD.
std::string ToUtf8(absl::string_view bytes);
// `text` with control characters (but newline and tab) shown as \xNN, so that a file's or a peer's words cannot drive
// the terminal.
std::string Printable(absl::string_view text);

}  // namespace baton::cli

#endif  // BATON_CLI_OUTPUT_H_
