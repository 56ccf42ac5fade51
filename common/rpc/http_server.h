// An asynchronous HTTP/1.1 server, plain or over TLS: /metrics and /health of every process, and the router's HTTP door.
//
// Everything a stranger can make grow is bounded: connections, headers, bodies (one and all together), the time for
// each step, and what waits for a slow reader. A request whose framing could be read in two ways is refused.
#ifndef BATON_COMMON_RPC_HTTP_SERVER_H_
#define BATON_COMMON_RPC_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/http_message.h"

namespace baton::rpc {

// Paths of PEM files.
struct HttpTlsFiles {
  std::string cert;  // the chain, the server's own first
  std::string key;
  absl::Duration reload = absl::Seconds(60);  // between looks at whether they changed, which a new connection causes
};

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  int threads = 1;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  size_t max_all_bodies_bytes = 128 << 20;  // of requests that are still arriving, together
  size_t max_buffered_bytes = 1 << 20;      // of a stream that its client does not read fast enough
  int max_connections = 256;
  int max_connections_per_address = 256;              // loopback is exempt: a proxy or many local clients
  absl::Duration header_timeout = absl::Seconds(10);  // for a TLS handshake; for a header, once its first byte is there
  absl::Duration body_timeout = absl::Seconds(60);    // and for its body
  absl::Duration idle_timeout = absl::Seconds(120);   // between two requests of a connection
  absl::Duration write_timeout = absl::Seconds(30);   // in which the client reads nothing
  std::optional<HttpTlsFiles> tls;                    // HTTPS alone; plain HTTP is told so
};

// Thread contract: Handle and HandleAsync before Start; the rest is thread-safe. Handlers run on the server's threads
// and must be quick.
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  using AsyncHandler = std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)>;

  explicit HttpServer(const HttpServerOptions& options);
  // As Stop.
  ~HttpServer();

  // An exact path, or one that ends with "/*" and serves every path that begins so. Another method on a known path is
  // answered 405, another path 404. GET handlers serve HEAD too.
  void Handle(const std::string& method, const std::string& path, Handler handler);
  void HandleAsync(const std::string& method, const std::string& path, AsyncHandler handler);

  // Errors as Server::Start, and of the TLS files as ReadCertificatePair.
  absl::Status Start();
  const std::string& address() const;
  int port() const;
  int connections() const;

  // From now on a connection is closed after its answer, and at once when it is idle between two requests. New ones are
  // still taken: probes ask for the health of a server that drains.
  void Drain();
  // Closes the listener, gives answers that are complete `grace` to reach their clients, then closes every connection.
  // No handler runs afterwards.
  void Stop(absl::Duration grace = absl::ZeroDuration());

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
