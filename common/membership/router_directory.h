// Where the cluster's routers are, as some registry says. The seam between membership and etcd, Kubernetes, or a list.
//
// A directory gives addresses only. Who is alive is found out by talking to them: a router that the registry has lost but
// that answers is not given up, and a registry that is away changes nothing.
#ifndef BATON_COMMON_MEMBERSHIP_ROUTER_DIRECTORY_H_
#define BATON_COMMON_MEMBERSHIP_ROUTER_DIRECTORY_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace baton::membership {

// The routers' gRPC addresses (host:port), sorted, without duplicates. Called on the directory's own thread at each
// change, never with an empty list: a registry that knows nobody is taken to have lost its data.
using OnRouters = std::function<void(const std::vector<std::string>& routers)>;

class RouterDirectory {
 public:
  // Stops its thread; OnRouters does not run any more then.
  virtual ~RouterDirectory() = default;
};

// Whether `membership` names a registry, and not the list in the settings.
bool UsesRegistry(const v1::Config& config);

// What OpenRouterDirectory would say of the settings, without opening anything: known before a model is loaded.
absl::Status CheckSettings(const v1::Config& config);

// By the setting `membership`. For "embedded" on_routers is called at once, with the setting `router`, on the caller's
// thread. INVALID_ARGUMENT: a setting is missing or malformed. A registry that cannot be reached is no error: it is tried
// again, with a warning in the log, and so is one that is lost later.
absl::StatusOr<std::unique_ptr<RouterDirectory>> OpenRouterDirectory(const v1::Config& config, OnRouters on_routers);

// Keeps one router's address in the registry while it lives. Null for "embedded" and "kubernetes", where nobody has to.
class Announcement {
 public:
  // Takes the address back, within a second.
  virtual ~Announcement() = default;
};
absl::StatusOr<std::unique_ptr<Announcement>> Announce(const v1::Config& config, const std::string& address);

// "a:1, b:2" taken apart. INVALID_ARGUMENT when one is not host:port, or there is none; `what` names the setting.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view what, absl::string_view text);

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_ROUTER_DIRECTORY_H_
