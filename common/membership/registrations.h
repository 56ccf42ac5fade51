// Keeps a worker registered with every router that a directory knows.
//
// A router that the directory has lost but that answers keeps its heartbeats: the registry is no judge of who is alive. It
// is given up once it does not answer either.
#ifndef BATON_COMMON_MEMBERSHIP_REGISTRATIONS_H_
#define BATON_COMMON_MEMBERSHIP_REGISTRATIONS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/membership/router_directory.h"
#include "common/membership/stoppable_thread.h"
#include "common/mutex.h"
#include "common/rpc/heartbeat.h"
#include "proto/config.pb.h"

namespace baton::membership {

struct RegistrationsOptions {
  // For each router; `router` and `on_change` are filled in here. Its functions are called on one thread per router.
  // on_answer gets the peers that any router named, not only those of the one that answered.
  rpc::HeartbeatOptions heartbeat;
  // As HeartbeatOptions::on_change, and which router, and with how many others this worker is registered. Called on that
  // router's thread.
  std::function<void(const std::string& router, const absl::Status& status, int others)> on_change;
};

// Thread contract: thread-safe.
class Registrations {
 public:
  // Errors as OpenRouterDirectory.
  static absl::StatusOr<std::unique_ptr<Registrations>> Start(const v1::Config& config, RegistrationsOptions options);
  // Stops without telling the routers, unless Deregister came first.
  ~Registrations();

  // To all routers, also to those found later.
  void SetDraining();
  // Tells all of them, each within a second. For a clean exit.
  void Deregister();
  // With how many routers.
  int registered() const;

 private:
  struct Router {
    std::unique_ptr<rpc::Heartbeat> heartbeat;
    bool listed = true;   // by the directory
    bool answers = true;  // as far as is known
    std::vector<v1::KvPeer> peers;
  };

  explicit Registrations(RegistrationsOptions options) : options_(std::move(options)) {}
  void OnRouters(const std::vector<std::string>& routers);
  void OnChange(const std::string& router, const absl::Status& status);
  void OnAnswer(const std::string& router, v1::HeartbeatResponse answer);
  void DropLost();  // on reaper_

  const RegistrationsOptions options_;
  mutable Mutex mu_;
  std::map<std::string, Router> routers_ ABSL_GUARDED_BY(mu_);  // by address
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  StoppableThread reaper_;
  std::unique_ptr<RouterDirectory> directory_;
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_REGISTRATIONS_H_
