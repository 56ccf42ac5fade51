// tool_choice "required" or a named tool: a constraint under which the answer is one call of a tool, in the model's form, with
// arguments that satisfy the tool's schema.
#ifndef BATON_ROUTER_HTTP_FORCED_CALL_H_
#define BATON_ROUTER_HTTP_FORCED_CALL_H_

#include "absl/status/status.h"
#include "router/http/openai_request.h"
#include "router/http/tool_calls.h"

namespace baton::router::http {

// Constrains every prompt of `request`, whose `callable` is not empty. INVALID_ARGUMENT: this model has no form of calls.
absl::Status ForceCall(ToolFormat format, OpenAiRequest* request);

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_FORCED_CALL_H_
