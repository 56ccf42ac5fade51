#include "router/http/tool_calls.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::router::http {
namespace {

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
constexpr absl::string_view kPythonTag = "<|python_tag|>";

// The longest end of `text` with which `marker` may begin.
size_t HeldBytes(absl::string_view text, absl::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (absl::EndsWith(text, marker.substr(0, n))) return n;
  }
  return 0;
}

std::string DecodeString(absl::string_view json) {
  const auto parsed = nlohmann::json::parse(json.begin(), json.end(), nullptr, false);
  return parsed.is_string() ? parsed.get<std::string>() : std::string();
}

}  // namespace

ToolFormat ToolFormatOf(absl::string_view chat_template) {
  if (!absl::StrContains(chat_template, "tools")) return ToolFormat::kHermes;  // as tools_as_text.h tells it
  if (absl::StrContains(chat_template, "<tool_call>")) return ToolFormat::kHermes;
  const bool llama =
      absl::StrContains(chat_template, "<|python_tag|>") || absl::StrContains(chat_template, "\"parameters\"");
  return llama ? ToolFormat::kLlama3 : ToolFormat::kNone;
}

size_t CallScanner::Push(absl::string_view text) {
  size_t taken = 0;
  while (taken < text.size() && state_ == State::kOpen) {
    const bool named = name_.has_value();
    raw_ += text[taken];
    Step(text[taken++]);
    if (!named && name_.has_value()) break;
  }
  return taken;
}

void CallScanner::Step(char c) {
  if (in_string_) {
    if (in_arguments_ && !arguments_are_string_) arguments_ += c;
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 1 && !in_value_) key_ = DecodeString(absl::string_view(raw_).substr(string_begin_));
    }
    return;
  }
  if (depth_ == 0 && c != '{') {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) state_ = State::kMalformed;
    return;
  }
  if (depth_ == 1 && value_due_ && !absl::ascii_isspace(static_cast<unsigned char>(c))) BeginValue(c);
  const bool ends_value = depth_ == 1 && in_value_ && (c == ',' || c == '}');
  if (ends_value) EndValue();
  if (c == '"') {
    in_string_ = true;
    if (depth_ == 1) string_begin_ = raw_.size() - 1;
  } else if (c == ':' && depth_ == 1 && !in_value_) {
    value_due_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    if (--depth_ == 0) state_ = State::kClosed;
  }
  if (in_arguments_ && !arguments_are_string_ && !ends_value) arguments_ += c;
}

void CallScanner::BeginValue(char c) {
  value_due_ = false;
  in_value_ = true;
  value_begin_ = raw_.size() - 1;
  in_arguments_ = !has_arguments_ && (key_ == "arguments" || key_ == "parameters");
  has_arguments_ = has_arguments_ || in_arguments_;
  arguments_are_string_ = in_arguments_ && c == '"';
}

void CallScanner::EndValue() {
  in_value_ = false;
  const absl::string_view value = absl::string_view(raw_).substr(value_begin_, raw_.size() - 1 - value_begin_);
  if (key_ == "name" && !name_.has_value()) name_ = DecodeString(value);
  if (in_arguments_ && arguments_are_string_) arguments_ = DecodeString(value);
  in_arguments_ = false;
}

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

ToolPiece ToolCallParser::Push(absl::string_view text) {
  buffer_.append(text.data(), text.size());
  ToolPiece piece;
  if (format_ == ToolFormat::kNone) {
    piece.content = std::exchange(buffer_, {});
    return piece;
  }
  do {
    progress_ = false;
    switch (state_) {
      case State::kStart:
        Start(&piece);
        break;
      case State::kText:
        Text(&piece);
        break;
      case State::kCall:
        Call(&piece);
        break;
      case State::kAfterCall:
        AfterCall(&piece);
        break;
      case State::kOnlyText:
        piece.content += std::exchange(buffer_, {});
        break;
    }
  } while (progress_ && !buffer_.empty());
  return piece;
}

// White space at the end waits: before a call it is none of the content.
void ToolCallParser::Content(absl::string_view text, ToolPiece* piece) {
  space_.append(text.data(), text.size());
  size_t end = space_.size();
  while (end > 0 && absl::ascii_isspace(static_cast<unsigned char>(space_[end - 1]))) --end;
  piece->content += space_.substr(0, end);
  space_.erase(0, end);
}

void ToolCallParser::Start(ToolPiece* piece) {
  if (format_ == ToolFormat::kHermes) {
    state_ = State::kText;
    progress_ = true;
    return;
  }
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(buffer_);
  if (text.empty() || (text.size() < kPythonTag.size() && absl::StartsWith(kPythonTag, text))) return;
  if (absl::StartsWith(text, kPythonTag)) {
    buffer_.erase(0, buffer_.find(kPythonTag.data(), 0, kPythonTag.size()) + kPythonTag.size());
    progress_ = true;
    return;
  }
  progress_ = true;
  if (text[0] == '{') return BeginCall();
  state_ = State::kOnlyText;
}

void ToolCallParser::Text(ToolPiece* piece) {
  const size_t at = buffer_.find(kOpen.data(), 0, kOpen.size());
  const size_t end = at != std::string::npos ? at : buffer_.size() - HeldBytes(buffer_, kOpen);
  Content(absl::string_view(buffer_).substr(0, end), piece);
  buffer_.erase(0, at != std::string::npos ? end + kOpen.size() : end);
  if (at == std::string::npos) return;
  progress_ = true;
  BeginCall();
}

void ToolCallParser::BeginCall() {
  state_ = State::kCall;
  scanner_ = CallScanner();
  announced_ = false;
}

void ToolCallParser::Report(ToolPiece* piece) {
  if (!scanner_.name().has_value()) return;
  if (!announced_) {
    announced_ = true;
    piece->deltas.push_back({num_calls_++, *scanner_.name(), ""});
  }
  if (std::string arguments = scanner_.TakeArguments(); !arguments.empty()) {
    piece->deltas.push_back({num_calls_ - 1, "", std::move(arguments)});
  }
}

void ToolCallParser::Call(ToolPiece* piece) {
  buffer_.erase(0, scanner_.Push(buffer_));
  const std::optional<std::string>& name = scanner_.name();
  const bool stranger =
      name.has_value() && (name->empty() || (format_ == ToolFormat::kLlama3 && names_.count(*name) == 0));
  const bool closed = scanner_.state() == CallScanner::State::kClosed;
  if (scanner_.state() == CallScanner::State::kMalformed || stranger || (closed && !name.has_value())) {
    return NotACall(piece);
  }
  if (closed && !scanner_.has_arguments() && format_ == ToolFormat::kLlama3) return NotACall(piece);
  // Llama 3's form is a call only with arguments; until they come it may be an answer.
  if (format_ == ToolFormat::kHermes || scanner_.has_arguments()) Report(piece);
  progress_ = true;
  if (!closed) return;
  if (!scanner_.has_arguments()) piece->deltas.push_back({num_calls_ - 1, "", "{}"});
  state_ = State::kAfterCall;
}

void ToolCallParser::NotACall(ToolPiece* piece) {
  std::string text = scanner_.raw();
  if (format_ == ToolFormat::kHermes) text = absl::StrCat(kOpen, text);
  piece->content += std::exchange(space_, {});
  Content(text, piece);
  state_ = format_ == ToolFormat::kHermes ? State::kText : State::kOnlyText;
  if (state_ == State::kOnlyText) piece->content += std::exchange(space_, {});
  progress_ = true;
}

void ToolCallParser::AfterCall(ToolPiece* piece) {
  const size_t skip = buffer_.size() - absl::StripLeadingAsciiWhitespace(buffer_).size();
  const absl::string_view text = absl::string_view(buffer_).substr(skip);
  if (text.empty()) return;
  const absl::string_view marker = format_ == ToolFormat::kHermes ? kClose : ";";
  if (text.size() < marker.size() && absl::StartsWith(marker, text)) return;
  progress_ = true;
  if (absl::StartsWith(text, marker)) {
    buffer_.erase(0, skip + marker.size());
    if (format_ == ToolFormat::kHermes) state_ = State::kText;
    return;
  }
  if (format_ == ToolFormat::kLlama3 && text[0] == '{') return BeginCall();
  state_ = format_ == ToolFormat::kHermes ? State::kText : State::kOnlyText;
}

ToolPiece ToolCallParser::Finish() {
  ToolPiece piece;
  if (state_ == State::kCall && !announced_) NotACall(&piece);
  if (state_ == State::kStart || state_ == State::kText || state_ == State::kOnlyText) Content(buffer_, &piece);
  if (num_calls_ == 0) piece.content += space_;
  buffer_.clear();
  space_.clear();
  return piece;
}

}  // namespace baton::router::http
