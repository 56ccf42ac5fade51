// A small asynchronous HTTP/1.1 server for /metrics, /health and what a process adds. One thread of its own.
#ifndef BATON_COMMON_RPC_HTTP_SERVER_H_
#define BATON_COMMON_RPC_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::rpc {

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  int max_connections = 256;
  absl::Duration header_timeout = absl::Seconds(10);  // for a whole request to arrive, once its first byte has
  absl::Duration idle_timeout = absl::Seconds(120);   // between two requests of a connection
  absl::Duration write_timeout = absl::Seconds(30);
};

struct HttpRequest {
  std::string method;                          // "GET"
  std::string path;                            // without the query
  std::string query;                           // without '?'
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers;
};

// {"error":{"code":404,"status":"NOT_FOUND","message":...}}
HttpResponse HttpError(int code, absl::string_view status, absl::string_view message);

// Thread contract: Handle before Start; the rest is thread-safe. Handlers run on the server's thread and must be quick.
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  explicit HttpServer(const HttpServerOptions& options);
  // Closes the listener and every connection; no handler runs afterwards.
  ~HttpServer();

  // Exact path. Another method on a known path is answered 405, another path 404. GET handlers serve HEAD too.
  void Handle(const std::string& method, const std::string& path, Handler handler);

  // Errors as Server::Start.
  absl::Status Start();
  const std::string& address() const;
  int port() const;
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// What /health/ready answers.
struct Readiness {
  bool ready = false;
  std::string status = "loading";  // "ready", "loading", "draining"
  double progress = 0;             // of loading
};

// /metrics, /health, /health/live (200 while the process runs), /health/ready (503 unless ready).
void AddStandardHandlers(HttpServer* server, std::function<std::string()> metrics_text,
                         std::function<Readiness()> readiness);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_HTTP_SERVER_H_
