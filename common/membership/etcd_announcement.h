// A router's key in etcd, under a lease: it goes when the router does.
#ifndef BATON_COMMON_MEMBERSHIP_ETCD_ANNOUNCEMENT_H_
#define BATON_COMMON_MEMBERSHIP_ETCD_ANNOUNCEMENT_H_

#include <memory>
#include <string>

#include "common/membership/etcd_client.h"
#include "common/membership/router_directory.h"
#include "common/membership/stoppable_thread.h"

namespace baton::membership {

// Renews the lease every third of etcd_lease_s, and writes the key anew under a new lease when etcd has lost it.
class EtcdAnnouncement final : public Announcement {
 public:
  static absl::StatusOr<std::unique_ptr<Announcement>> Start(const v1::Config& config, const std::string& address);
  ~EtcdAnnouncement() override;

 private:
  EtcdAnnouncement(std::unique_ptr<EtcdClient> client, std::string key, absl::Duration ttl);
  void Run();
  absl::Status Renew();

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
  const absl::Duration ttl_;
  int64_t lease_ = 0;  // thread_ only, until it has ended; 0: none
  StoppableThread thread_;
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_ETCD_ANNOUNCEMENT_H_
