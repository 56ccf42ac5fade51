#include "common/membership/etcd_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/rpc/address.h"

namespace baton::membership {

std::string RoutersPrefix(const v1::Config& config) {
  return absl::StrCat(absl::StripSuffix(config.etcd_prefix(), "/"), "/routers/");
}

absl::StatusOr<std::unique_ptr<RouterDirectory>> EtcdDirectory::Open(const v1::Config& config, OnRouters on_routers) {
  absl::StatusOr<std::unique_ptr<EtcdClient>> client = EtcdClient::Create(config);
  if (!client.ok()) return client.status();
  std::unique_ptr<EtcdDirectory> directory(
      new EtcdDirectory(*std::move(client), RoutersPrefix(config), std::move(on_routers)));
  directory->thread_.Start([d = directory.get()] { d->Run(); });
  return directory;
}

EtcdDirectory::EtcdDirectory(std::unique_ptr<EtcdClient> client, std::string prefix, OnRouters on_routers)
    : client_(std::move(client)), prefix_(std::move(prefix)), on_routers_(std::move(on_routers)) {}

EtcdDirectory::~EtcdDirectory() {
  thread_.Stop([this] { client_->Stop(); });
}

void EtcdDirectory::Run() {
  bool warned = false;
  while (!thread_.stopping()) {
    const absl::Status s = ListAndWait();
    if (s.ok() || absl::IsAborted(s)) {
      if (std::exchange(warned, false)) LogInfo("etcd answers again", {{"endpoint", client_->endpoint()}});
      // Not at once: a registry in a hurry (a compaction loop, a flood of changes) does not make this a busy loop.
      thread_.Sleep(absl::Milliseconds(50));
      continue;
    }
    if (thread_.stopping()) return;
    if (!std::exchange(warned, true)) {
      LogWarn("etcd cannot be reached; the routers known so far stay, and it is tried again",
              {{"endpoint", client_->endpoint()}, {"error", s.message()}});
    }
    client_->TryNextEndpoint();
    thread_.Sleep(backoff_.Next());
  }
}

absl::Status EtcdDirectory::ListAndWait() {
  absl::StatusOr<EtcdClient::Listing> listing = client_->List(prefix_);
  if (!listing.ok()) return listing.status();
  backoff_.Reset();
  std::vector<std::string> routers;
  for (const etcdserverpb::KeyValue& kv : listing->kvs) {
    std::string address(absl::StripPrefix(kv.key(), prefix_));
    if (!rpc::ParseHostPort(address).ok()) {
      LogWarn("a key in etcd is not a router's address; it is left out", {{"prefix", prefix_}});
      continue;
    }
    routers.push_back(std::move(address));
  }
  std::sort(routers.begin(), routers.end());
  if (!routers.empty() && routers != told_) {
    LogInfo("routers in etcd", {{"routers", absl::StrJoin(routers, ",")}});
    told_ = routers;
    on_routers_(routers);
  }
  return client_->AwaitChange(prefix_, listing->revision);
}

}  // namespace baton::membership
