// Finds calls of tools in a model's output, as it is produced.
//
// Hermes (Hermes, Qwen, SmolLM3): <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, among text.
// Llama 3: the whole output is {"name": ..., "parameters": {...}}, or several, separated by ";".
//
// What looks like a call and is none is text. Arguments leave piece by piece, as the model writes them.
#ifndef BATON_ROUTER_HTTP_TOOL_CALLS_H_
#define BATON_ROUTER_HTTP_TOOL_CALLS_H_

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::router::http {

enum class ToolFormat { kNone, kHermes, kLlama3 };

// The form that a model with this chat template writes, by the words the template uses; Hermes where it knows no tools.
ToolFormat ToolFormatOf(absl::string_view chat_template);

struct ToolDelta {
  int index = 0;          // of the call within the message
  std::string name;       // set in a call's first delta, alone
  std::string arguments;  // the next piece
};

struct ToolPiece {
  std::string content;
  std::vector<ToolDelta> deltas;
};

// The members of one JSON object, found while it arrives.
class CallScanner {
 public:
  enum class State { kOpen, kClosed, kMalformed };

  // Takes bytes until the object closes or its name is known, so that a caller can judge that at the same byte however
  // the text was cut; returns how many it took.
  size_t Push(absl::string_view text);

  State state() const { return state_; }
  const std::string& raw() const { return raw_; }
  const std::optional<std::string>& name() const { return name_; }
  // What of the arguments has arrived and was not taken. A string is decoded first, so it comes at its end.
  std::string TakeArguments();
  bool has_arguments() const { return has_arguments_; }

 private:
  void Step(char c);
  void BeginValue(char c);
  void EndValue();

  State state_ = State::kOpen;
  std::string raw_;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  bool value_due_ = false;   // after a colon
  bool in_value_ = false;    // of a member of the outermost object
  size_t string_begin_ = 0;  // of the last string at depth 1
  std::string key_;
  size_t value_begin_ = 0;
  std::optional<std::string> name_;
  bool has_arguments_ = false, arguments_are_string_ = false, in_arguments_ = false;
  std::string arguments_;  // not taken yet
};

// One choice's output. Thread-compatible.
class ToolCallParser {
 public:
  // `names`: the tools of the request. Llama 3's form is only a call when it names one of them, since an answer may
  // well be a JSON object.
  ToolCallParser(ToolFormat format, std::set<std::string> names) : format_(format), names_(std::move(names)) {}

  ToolPiece Push(absl::string_view text);
  ToolPiece Finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class State { kText, kStart, kCall, kAfterCall, kOnlyText };

  void Text(ToolPiece* piece);
  void Start(ToolPiece* piece);
  void Call(ToolPiece* piece);
  void AfterCall(ToolPiece* piece);
  void BeginCall();
  void NotACall(ToolPiece* piece);
  void Content(absl::string_view text, ToolPiece* piece);
  void Report(ToolPiece* piece);

  const ToolFormat format_;
  const std::set<std::string> names_;
  State state_ = State::kStart;
  std::string buffer_;  // not looked at, or held back
  std::string space_;   // white space that is content only if content follows
  bool progress_ = false;
  CallScanner scanner_;
  bool announced_ = false;  // this call's name is out
  int num_calls_ = 0;
};

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_TOOL_CALLS_H_
