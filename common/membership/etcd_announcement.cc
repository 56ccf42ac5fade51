#include "common/membership/etcd_announcement.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "common/logging.h"
#include "common/membership/etcd_directory.h"
#include "common/rpc/address.h"

namespace baton::membership {

absl::StatusOr<std::unique_ptr<Announcement>> EtcdAnnouncement::Start(const v1::Config& config,
                                                                       const std::string& address) {
  const absl::StatusOr<rpc::HostPort> where = rpc::ParseHostPort(address);
  if (!where.ok() || where->port == 0 || where->host == "0.0.0.0" || where->host == "::") {
    return absl::InvalidArgumentError(absl::StrCat("\"", address,
                                                   "\" is not an address that others can reach; set `advertise` to this "
                                                   "router's host:port"));
  }
  absl::StatusOr<std::unique_ptr<EtcdClient>> client = EtcdClient::Create(config);
  if (!client.ok()) return client.status();
  std::unique_ptr<EtcdAnnouncement> announcement(new EtcdAnnouncement(
      *std::move(client), absl::StrCat(RoutersPrefix(config), address), absl::Seconds(config.etcd_lease_s())));
  announcement->thread_.Start([a = announcement.get()] { a->Run(); });
  return announcement;
}

EtcdAnnouncement::EtcdAnnouncement(std::unique_ptr<EtcdClient> client, std::string key, absl::Duration ttl)
    : client_(std::move(client)), key_(std::move(key)), ttl_(ttl) {}

EtcdAnnouncement::~EtcdAnnouncement() {
  thread_.Stop([this] { client_->Stop(); });
  if (lease_ != 0) client_->RevokeLease(lease_);
}

void EtcdAnnouncement::Run() {
  Backoff backoff;
  bool warned = false;
  while (!thread_.stopping()) {
    const absl::Status s = Renew();
    if (s.ok()) {
      if (std::exchange(warned, false)) LogInfo("this router is in etcd again", {{"key", key_}});
      backoff.Reset();
      thread_.Sleep(ttl_ / 3);
      continue;
    }
    if (thread_.stopping()) return;
    if (!std::exchange(warned, true)) {
      LogWarn("this router's key in etcd cannot be renewed; it is tried again",
              {{"endpoint", client_->endpoint()}, {"key", key_}, {"error", s.message()}});
    }
    client_->TryNextEndpoint();
    thread_.Sleep(backoff.Next());
  }
}

absl::Status EtcdAnnouncement::Renew() {
  if (lease_ != 0) {
    const absl::Status s = client_->RenewLease(lease_);
    if (!absl::IsNotFound(s)) return s;
    lease_ = 0;  // etcd was restarted empty, or was away for too long
  }
  absl::StatusOr<int64_t> lease = client_->GrantLease(ttl_);
  if (!lease.ok()) return lease.status();
  // A lease whose key could not be written is left to end by itself.
  if (absl::Status s = client_->Put(key_, "", *lease); !s.ok()) return s;
  lease_ = *lease;
  return absl::OkStatus();
}

}  // namespace baton::membership
