// How `baton scale`, and the router for its console, reach the `baton up` that runs on this machine: a Unix socket in a
// folder that only this user can enter, named after the router's address. One line of JSON each way.
#ifndef BATON_COMMON_CONTROL_SOCKET_H_
#define BATON_COMMON_CONTROL_SOCKET_H_

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton {

// Of the router at `router` (host:port). Makes the folder. UNAVAILABLE when that cannot be, or it is not private.
absl::StatusOr<std::string> ControlSocketPath(const std::string& router);

// The side of `baton up`, for its poll loop. Thread contract: one thread.
class ControlServer {
 public:
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

  // UNAVAILABLE when the socket cannot be made. A file that a dead process left is replaced.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Listen(const std::string& path);
  ~ControlServer();  // removes the socket
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // To poll for reading; few.
  std::vector<int> fds() const;
  // Answers what has come. Never blocks; a caller that is too slow or says too much is dropped.
  void Serve(const Handler& handler);

 private:
  struct Caller {
    int fd = -1;
    absl::Time since;
    std::string text;
  };
  ControlServer() = default;
  std::string path_;
  int listen_fd_ = -1;
  std::vector<Caller> callers_;
};

// The other side. NOT_FOUND: no `baton up` is there. UNAVAILABLE: it does not answer.
absl::StatusOr<nlohmann::json> CallControl(const std::string& path, const nlohmann::json& request,
                                           absl::Duration timeout);

}  // namespace baton

#endif  // BATON_COMMON_CONTROL_SOCKET_H_
