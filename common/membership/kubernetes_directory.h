// Routers as the endpoints of a Kubernetes service: its EndpointSlices, by list and watch over HTTPS with the pod's
// service-account token (https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes).
//
// Endpoints that are not ready count: a router is ready only once workers have found it. Terminating ones do not.
#ifndef BATON_COMMON_MEMBERSHIP_KUBERNETES_DIRECTORY_H_
#define BATON_COMMON_MEMBERSHIP_KUBERNETES_DIRECTORY_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/membership/https_client.h"
#include "common/membership/router_directory.h"
#include "common/membership/stoppable_thread.h"

namespace baton::membership {

// What one service's slices say, kept up to date by list and watch. No threads, no network: for tests too.
class EndpointSlices {
 public:
  // `port`: the name of the endpoints' port that is wanted.
  explicit EndpointSlices(std::string port) : port_(std::move(port)) {}

  // A list's answer. DATA_LOSS when it is not one; nothing is changed then. `next` (may be empty): the token of the next
  // part, to be asked for with `continue`.
  absl::Status TakeList(absl::string_view json, bool first_part, std::string* next);
  // One line of a watch. ABORTED: the list must be made anew (the server says 410 Gone: its history does not reach back
  // that far). DATA_LOSS: not a watch event, likewise.
  absl::Status TakeEvent(absl::string_view json);

  // host:port of all endpoints, sorted.
  std::vector<std::string> Addresses() const;
  const std::string& resource_version() const { return resource_version_; }

 private:
  const std::string port_;
  std::string resource_version_;
  std::map<std::string, std::vector<std::string>> slices_;  // addresses by the slice's name
};

class KubernetesDirectory final : public RouterDirectory {
 public:
  // Settings kubernetes_*. NOT_FOUND: the credentials' folder lacks a file (this is not a pod with a service account).
  // Reads the settings; asks nobody yet.
  static absl::StatusOr<std::unique_ptr<KubernetesDirectory>> Create(const v1::Config& config, OnRouters on_routers);
  static absl::StatusOr<std::unique_ptr<RouterDirectory>> Open(const v1::Config& config, OnRouters on_routers);
  ~KubernetesDirectory() override;

 private:
  struct Service {
    std::string ns;
    std::string name;
    std::string token_file;  // read anew for each request: kubelet replaces it
  };

  KubernetesDirectory(std::unique_ptr<HttpsClient> client, Service service, std::string port, OnRouters on_routers);
  void Run();
  absl::Status List();
  absl::Status Watch();
  void Tell();
  std::string Path(absl::string_view query) const;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Headers() const;

  const std::unique_ptr<HttpsClient> client_;
  const Service service_;
  const OnRouters on_routers_;
  EndpointSlices slices_;          // thread_ only
  std::vector<std::string> told_;  // thread_ only
  StoppableThread thread_;
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_KUBERNETES_DIRECTORY_H_
