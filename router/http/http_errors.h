// Statuses as answers that OpenAI's clients understand.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_HTTP_HTTP_ERRORS_H_
#define BATON_ROUTER_HTTP_HTTP_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "common/rpc/http_message.h"

namespace baton::router::http {

// Before the first byte of an answer: HTTP status and body, fields under OpenAI's names, Retry-After and
// x-should-retry. `constraint_field`: the client's name for the constraint, if the request has one.
rpc::HttpResponse ErrorResponse(const absl::Status& status, const std::string& constraint_field = "");

// Within a stream: {"error":{"message":...,"type":...,"param":null,"code":503}}.
std::string StreamError(const absl::Status& status, const std::string& constraint_field = "");

// 400, 404, 429, ... as the table in common/status.h.
int HttpCodeOf(const absl::Status& status);

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_HTTP_ERRORS_H_
