// Routers as keys in etcd: <etcd_prefix>/routers/<address>, kept there by EtcdAnnouncement.
#ifndef BATON_COMMON_MEMBERSHIP_ETCD_DIRECTORY_H_
#define BATON_COMMON_MEMBERSHIP_ETCD_DIRECTORY_H_

#include <memory>
#include <string>

#include "common/membership/etcd_client.h"
#include "common/membership/router_directory.h"
#include "common/membership/stoppable_thread.h"

namespace baton::membership {

// Lists, waits for any change, lists again: whatever a watch has lost, what is told is what etcd holds.
class EtcdDirectory final : public RouterDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<RouterDirectory>> Open(const v1::Config& config, OnRouters on_routers);
  ~EtcdDirectory() override;

 private:
  EtcdDirectory(std::unique_ptr<EtcdClient> client, std::string prefix, OnRouters on_routers);
  void Run();
  absl::Status ListAndWait();

  const std::unique_ptr<EtcdClient> client_;
  const std::string prefix_;
  const OnRouters on_routers_;
  std::vector<std::string> told_;  // thread_ only
  Backoff backoff_;                // thread_ only
  StoppableThread thread_;
};

// "<etcd_prefix>/routers/"
std::string RoutersPrefix(const v1::Config& config);

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_ETCD_DIRECTORY_H_
