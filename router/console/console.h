// The web console: its files, and the JSON that they read. docs/API.md has the paths.
#ifndef BATON_ROUTER_CONSOLE_CONSOLE_H_
#define BATON_ROUTER_CONSOLE_CONSOLE_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/rpc/http_server.h"
#include "proto/cluster.pb.h"
#include "router/api_keys.h"
#include "router/load_history.h"
#include "router/request_log.h"

namespace baton::router::console {

// What the console looks at. Nothing is owned; all outlives the console, and the console the server's handlers.
struct ConsoleSources {
  const RequestLog* log = nullptr;
  const LoadHistory* load = nullptr;
  // Who asks, by its Authorization header; an error: it may not look. Requests are shown to their tenant, the cluster and
  // its load to an administrator only: they are of all tenants.
  std::function<absl::StatusOr<Caller>(absl::string_view authorization)> caller_of;
  std::function<v1::ClusterStatus()> status;
  std::function<absl::StatusOr<v1::PlacementExplanation>(const std::string&)> explain;
  // Administration; null: there is none. `drain` calls back once, on any thread, before the console goes; `scale` may
  // block for seconds, and a size of 0 says nothing.
  std::function<void(const std::string& worker, std::function<void(absl::Status)> done)> drain;
  // `role` is "prefill" or "decode"; else as `drain`.
  std::function<void(const std::string& worker, const std::string& role, std::function<void(absl::Status)> done)>
      change_role;
  std::function<absl::Status(int prefill, int decode)> scale;
};

// Thread-safe.
class Console {
 public:
  explicit Console(ConsoleSources sources) : sources_(std::move(sources)) {}

  // To be called when no handler runs any more, and before the server goes: waits for a `scale` that runs.
  void WaitUntilIdle();

  // Before the server starts.
  void AddHandlers(rpc::HttpServer* server);

 private:
  bool admin() const { return sources_.drain != nullptr; }
  void AddAdminHandlers(rpc::HttpServer* server);
  void Drain(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange);
  void ChangeRole(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange);
  void Scale(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange);
  // The caller, if it may do what an administrator does.
  absl::StatusOr<Caller> Admin(const rpc::HttpRequest& request) const;
  // A path of JSON, for those who may look.
  enum class Who { kTenant, kAdmin };
  void HandleGet(rpc::HttpServer* server, const std::string& path, Who who,
                 std::function<rpc::HttpResponse(const rpc::HttpRequest&, const std::string& tenant)> answer);
  rpc::HttpResponse OneRequest(const rpc::HttpRequest& request, const std::string& tenant) const;
  // The body of a request that changes something, if the console's own page sent it for somebody who may.
  absl::StatusOr<nlohmann::ordered_json> OwnBody(const rpc::HttpRequest& request) const;

  const ConsoleSources sources_;
  Mutex mu_;
  bool scaling_ ABSL_GUARDED_BY(mu_) = false;
  std::thread scaler_ ABSL_GUARDED_BY(mu_);  // of the latest `scale`
};

}  // namespace baton::router::console

#endif  // BATON_ROUTER_CONSOLE_CONSOLE_H_
