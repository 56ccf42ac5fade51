// Bodies of HTTP requests from strangers: whatever they are, they become requests of baton.v1 that the validator can
// judge, or a typed error. The model's output is a stranger, too: tool calls are found in it.
#include <cstring>

#include "absl/strings/string_view.h"
#include "common/bounded_json.h"
#include "common/validate_request.h"
#include "constraint/compile.h"
#include "router/http/openai_request.h"
#include "router/http/tool_calls.h"
#include "tests/fuzz/fuzz_target.h"

using baton::router::http::OpenAiRequest;
using baton::router::http::ToolCallParser;
using baton::router::http::ToolFormat;
using baton::router::http::ToolPiece;

namespace {

void CheckRequest(const absl::StatusOr<OpenAiRequest>& request) {
  if (!request.ok()) {
    if (!absl::IsInvalidArgument(request.status())) __builtin_trap();
    return;
  }
  if (request->prompts.empty()) __builtin_trap();
  baton::ModelLimits limits;
  limits.vocab_size = 300;
  limits.max_context = 512;
  limits.model_names = {"m"};
  for (const auto& prompt : request->prompts) {
    if (baton::ValidateGenerateRequest(prompt, limits).ok() && prompt.SerializeAsString().empty()) __builtin_trap();
    const absl::Status constraint = baton::constraint::CheckConstraint(prompt.sampling());
    if (!constraint.ok() && !absl::IsInvalidArgument(constraint)) __builtin_trap();
  }
}

// What comes out does not depend on how the text was cut.
std::string Calls(ToolFormat format, absl::string_view text, size_t step) {
  ToolCallParser parser(format, {"f"});
  std::string content, calls;
  const auto take = [&](const ToolPiece& piece) {
    content += piece.content;
    for (const auto& delta : piece.deltas)
      calls += (delta.name.empty() ? "" : "\n" + delta.name + ":") + delta.arguments;
  };
  for (size_t at = 0; at < text.size(); at += step) take(parser.Push(text.substr(at, step)));
  take(parser.Finish());
  return content + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = baton::ParseBoundedJson(text);
  if (json.ok() && json->is_object()) {
    CheckRequest(baton::router::http::ParseChatRequest(*json));
    CheckRequest(baton::router::http::ParseCompletionRequest(*json));
  }
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3}) {
    if (Calls(format, text, 1) != Calls(format, text, 1 + size)) __builtin_trap();
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"model":"m","prompt":["a",[1,2]],"max_tokens":3,"stop":["x"],"logit_bias":{"5":-1},"seed":7,"stream":true,
          "stream_options":{"include_usage":true},"logprobs":2,"n":2,"echo":false,"temperature":0.5})",
      R"({"messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
          {"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"c","content":"d"}],"tools":[{"type":"function","function":{"name":"f",
          "parameters":{"type":"object"}}}],"tool_choice":"auto","logprobs":true,"top_logprobs":3,
          "response_format":{"type":"text"},"chat_template_kwargs":{"enable_thinking":false}})",
      R"({"prompt":"a","guided_json":{"type":"object","properties":{"a":{"type":["string","null"],"pattern":"^a|b{2,3}$"},
          "b":{"$ref":"#/$defs/d"}},"required":["a"],"$defs":{"d":{"anyOf":[{"type":"array","items":{"$ref":"#"},"maxItems":2},
          {"type":"number","minimum":-1.5,"exclusiveMaximum":7},{"enum":["x",1]}]}}}})",
      R"({"prompt":"a","structured_outputs":{"regex":"(?:[^a-f\\d]|\\x41+?){1,4}[\u00e9]"}})",
      R"({"prompt":"a","guided_grammar":"root ::= item (\", \" item){0,3} # c\nitem ::=\n [a-z_]+ | \"\\u00e9\" | [^\\x00-\\x1F]? | .\n"})",
      R"({"messages":[{"role":"user","content":"b"}],"tools":[{"type":"function","function":{"name":"f",
          "parameters":{"$defs":{"d":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/d"}}}}}],
          "tool_choice":{"type":"function","function":{"name":"f"}}})",
      "text <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}</tool_call> more",
      "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"\\u00e9\"}}; {\"name\": \"f\", \"parameters\": "
      "\"{}\"}",
  };
}
