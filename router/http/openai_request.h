// Bodies of /v1/chat/completions and /v1/completions, as requests of baton.v1. Types and unsupported features are
// judged here; ranges by the validator that all doors share.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
#define BATON_ROUTER_HTTP_OPENAI_REQUEST_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "router/http/json_fields.h"

namespace baton::router::http {

inline constexpr size_t kMaxPrompts = 64;            // of one completion request
inline constexpr int kDefaultCompletionTokens = 16;  // of /v1/completions, as OpenAI's
inline constexpr size_t kMaxTools = 128;

struct OpenAiRequest {
  bool chat = false;
  std::vector<v1::GenerateRequest> prompts;  // not empty; all with the same sampling; no request_id
  int n = 1;                                 // choices of each prompt
  bool stream = false;
  bool include_usage = false;     // a chunk with the usage before the end
  bool continuous_usage = false;  // and on each chunk
  bool logprobs = false;
  bool echo = false;
  bool return_token_ids = false;
  std::set<std::string> tools;  // names; empty: the output is not searched for calls
  bool one_tool_call = false;
  // tool_choice required: the whole answer is one call, of one of `callable`. Empty: the model may answer as it likes.
  std::set<std::string> callable;
  std::string constraint_field;  // which field asked for the constraint, "guided_json"; empty: none
  std::vector<std::string> ignored;  // fields that mean nothing here
};

// INVALID_ARGUMENT names the field. UNIMPLEMENTED never: what is not supported is the request's fault, too.
absl::StatusOr<OpenAiRequest> ParseChatRequest(const Json& body);
absl::StatusOr<OpenAiRequest> ParseCompletionRequest(const Json& body);

// `messages`, `tools` and the template's other inputs; for /tokenize too. `fields` keeps the error.
void ReadChat(JsonFields* fields, v1::Chat* chat);

// What both have in common. `fields` keeps the error.
void ReadCommon(JsonFields* fields, OpenAiRequest* request, v1::GenerateRequest* prompt);

// response_format, guided_* and structured_outputs; returns the name of the one that is there. What they say is judged
// behind the door (constraint/compile.h).
std::string ReadConstraint(JsonFields* fields, v1::SamplingParams* sampling);

// The common fields that would change the answer and cannot be honoured: refused. Those that change nothing: read.
void RefuseUnsupported(JsonFields* fields);

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
