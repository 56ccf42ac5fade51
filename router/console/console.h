// The web console: its files, and the JSON that they read. docs/API.md has the paths.
#ifndef BATON_ROUTER_CONSOLE_CONSOLE_H_
#define BATON_ROUTER_CONSOLE_CONSOLE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/http_server.h"
#include "proto/cluster.pb.h"
#include "router/load_history.h"
#include "router/request_log.h"

namespace baton::router::console {

// What the console looks at. Nothing is owned; all outlives the console, and the console outlives the server's handlers.
struct ConsoleSources {
  const RequestLog* log = nullptr;
  const LoadHistory* load = nullptr;
  std::function<v1::ClusterStatus()> status;
  std::function<absl::StatusOr<v1::PlacementExplanation>(const std::string&)> explain;
};

// Thread-safe.
class Console {
 public:
  explicit Console(ConsoleSources sources) : sources_(std::move(sources)) {}

  // Before the server starts.
  void AddHandlers(rpc::HttpServer* server);

 private:
  rpc::HttpResponse OneRequest(const rpc::HttpRequest& request) const;

  const ConsoleSources sources_;
};

}  // namespace baton::router::console

#endif  // BATON_ROUTER_CONSOLE_CONSOLE_H_
