#include "common/membership/router_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/membership/etcd_announcement.h"
#include "common/membership/etcd_directory.h"
#include "common/membership/kubernetes_directory.h"
#include "common/rpc/address.h"

namespace baton::membership {

absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view what, absl::string_view text) {
  std::vector<std::string> addresses;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (part.empty()) continue;
    if (absl::StatusOr<rpc::HostPort> address = rpc::ParseHostPort(part); !address.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", address.status().message()));
    }
    addresses.emplace_back(part);
  }
  if (addresses.empty()) return absl::InvalidArgumentError(absl::StrCat(what, ": no address (host:port) is given"));
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

bool UsesRegistry(const v1::Config& config) {
  return config.membership() == "etcd" || config.membership() == "kubernetes";
}

absl::Status CheckSettings(const v1::Config& config) {
  if (config.membership() == "etcd") return EtcdClient::Create(config).status();
  if (config.membership() == "kubernetes") return KubernetesDirectory::Create(config, nullptr).status();
  return config.has_router() ? ParseAddresses("router", config.router()).status() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RouterDirectory>> OpenRouterDirectory(const v1::Config& config, OnRouters on_routers) {
  if (config.membership() == "etcd") return EtcdDirectory::Open(config, std::move(on_routers));
  if (config.membership() == "kubernetes") return KubernetesDirectory::Open(config, std::move(on_routers));
  absl::StatusOr<std::vector<std::string>> routers = ParseAddresses("router", config.router());
  if (!routers.ok()) return routers.status();
  on_routers(*routers);
  return std::make_unique<RouterDirectory>();
}

absl::StatusOr<std::unique_ptr<Announcement>> Announce(const v1::Config& config, const std::string& address) {
  if (config.membership() != "etcd") return nullptr;
  return EtcdAnnouncement::Start(config, address);
}

}  // namespace baton::membership
