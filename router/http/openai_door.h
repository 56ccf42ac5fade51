// The HTTP door: OpenAI's API, and the paths that its clients and dashboards look for besides. docs/API.md has what is
// supported.
#ifndef BATON_ROUTER_HTTP_OPENAI_DOOR_H_
#define BATON_ROUTER_HTTP_OPENAI_DOOR_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "router/http/openai_request.h"
#include "router/http/tool_calls.h"
#include "router/intake.h"

namespace baton::router::http {

struct OpenAiDoorOptions {
  // "auto" (by the words of the chat template), "hermes", "llama3" or "none".
  std::string tool_format = "auto";
};

// Thread-safe. Nothing is owned; all outlives the door, and the door outlives the server's handlers and the requests.
class OpenAiDoor {
 public:
  OpenAiDoor(const OpenAiDoorOptions& options, Intake* intake, Metrics* metrics);

  // Before the server starts.
  void AddHandlers(rpc::HttpServer* server);

 private:
  using Parse = absl::StatusOr<OpenAiRequest> (*)(const Json& body);
  using Answer = absl::StatusOr<Json> (OpenAiDoor::*)(const Json& body) const;

  void Generate(const std::string& path, Parse parse, const rpc::HttpRequest& request,
                std::shared_ptr<rpc::HttpExchange> exchange);
  rpc::HttpResponse Post(const std::string& path, Answer answer, const rpc::HttpRequest& request);
  rpc::HttpResponse Models(const rpc::HttpRequest& request) const;
  rpc::HttpResponse OneModel(const rpc::HttpRequest& request) const;
  Json ListModels() const;
  absl::StatusOr<Json> Tokenize(const Json& body) const;
  absl::StatusOr<Json> Detokenize(const Json& body) const;

  void Count(const std::string& path, int http_code);
  void CountClientRetry(const rpc::HttpRequest& request);
  void WarnOfIgnored(const std::vector<std::string>& names);

  // UNAUTHENTICATED when the caller may not ask.
  absl::StatusOr<Caller> CallerOf(const rpc::HttpRequest& request) const;

  Intake* const intake_;
  Metrics* const metrics_;
  const ToolFormat tool_format_;
  prometheus::Counter& client_retries_;
  Mutex mu_;
  std::set<std::string> warned_ ABSL_GUARDED_BY(mu_);  // bounded
};

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_OPENAI_DOOR_H_
