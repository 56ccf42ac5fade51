// One HTTP request and its answer, as handlers see them.
#ifndef BATON_COMMON_RPC_HTTP_MESSAGE_H_
#define BATON_COMMON_RPC_HTTP_MESSAGE_H_

#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::rpc {

struct HttpRequest {
  std::string method;                          // "GET"
  std::string path;                            // without the query
  std::string query;                           // without '?'
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // Empty when absent.
  absl::string_view header(const std::string& lower_case_name) const {
    const auto found = headers.find(lower_case_name);
    return found == headers.end() ? absl::string_view() : absl::string_view(found->second);
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers;  // values must not hold line ends
};

// The error body that OpenAI's clients read, with our status name besides:
// {"error":{"message":...,"type":"invalid_request_error","param":null,"code":"not_found","status":"NOT_FOUND"}}
// `param`: the field at fault; `code`: for programs, by default `status` in lower case.
HttpResponse HttpError(int http_code, absl::string_view status, absl::string_view message, absl::string_view param = "",
                       absl::string_view code = "");

// The answer to one request, in one piece or as a stream. A request whose exchange is dropped unanswered is answered
// 500.
//
// Thread contract: thread-safe; nothing blocks. An exchange must be gone before its server is destroyed.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Exactly once, unless Begin is called instead.
  virtual void Respond(HttpResponse response) = 0;

  // A streamed answer: status and headers (the body goes first, if there is one), any number of pieces, the end. Each
  // piece is a chunk of its own on the wire.
  virtual void Begin(HttpResponse head) = 0;
  // False when it will not be sent: the client is gone, or reads so slowly that it was dropped.
  virtual bool Write(absl::string_view piece) = 0;
  virtual void End() = 0;

  // `gone` runs once when the client hangs up, or is dropped, before the answer is complete; at once if that has
  // happened. It must not block.
  virtual void OnGone(std::function<void()> gone) = 0;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_MESSAGE_H_
