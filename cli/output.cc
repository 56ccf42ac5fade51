#include "cli/output.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::cli {
namespace {

bool Wanted(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0';
}

void WriteAll(std::FILE* file, absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

// Length of the valid UTF-8 sequence at text[i], 0 when there is none.
size_t SequenceLength(absl::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

Output::Output(bool json) : json_(json) {
  stdout_tty_ = ::isatty(STDOUT_FILENO) == 1;
  stderr_tty_ = ::isatty(STDERR_FILENO) == 1;
  const char* term = std::getenv("TERM");
  color_ = stderr_tty_ && !Wanted("NO_COLOR") && !(term != nullptr && absl::string_view(term) == "dumb");
}

void Output::Data(absl::string_view text) const { WriteAll(stdout, text); }

void Output::Json(const nlohmann::ordered_json& document) const {
  // "replace": a name from outside that is not UTF-8 must not end the program.
  WriteAll(stdout, document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void Output::Note(absl::string_view line) const { WriteAll(stderr, absl::StrCat(line, "\n")); }

void Output::Raw(absl::string_view text) const { WriteAll(stderr, text); }

int Output::Fail(const absl::Status& status, absl::string_view next, int exit_code) const {
  const std::string message = Printable(absl::string_view(status.message().data(), status.message().size()));
  Note(absl::StrCat(Paint(Style::kRed, "error:"), " ", message));
  if (!next.empty()) Note(absl::StrCat(Paint(Style::kBold, "next:"), "  ", next));
  if (json_) {
    Json({{"error",
           {{"code", absl::StatusCodeToString(status.code())},
            {"message", ToUtf8(status.message())},
            {"next", std::string(next)},
            {"exit_code", exit_code}}}});
  }
  return exit_code;
}

std::string Output::Paint(Style style, absl::string_view text) const {
  if (!color_ || style == Style::kPlain) return std::string(text);
  static constexpr const char* kCodes[] = {"", "1", "2", "31", "32", "33"};
  return absl::StrCat("\x1b[", kCodes[static_cast<int>(style)], "m", text, "\x1b[0m");
}

std::string ToUtf8(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = SequenceLength(bytes, i);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++i;
    } else {
      absl::StrAppend(&out, bytes.substr(i, length));
      i += length;
    }
  }
  return out;
}

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      absl::StrAppend(&out, absl::StrFormat("\\x%02x", byte));
    } else {
      out += c;
    }
  }
  return ToUtf8(out);
}

}  // namespace baton::cli
