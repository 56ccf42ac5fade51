#include "common/membership/registrations.h"

#include <algorithm>
#include <utility>

#include "common/logging.h"

namespace baton::membership {
namespace {

constexpr absl::Duration kReapInterval = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<Registrations>> Registrations::Start(const v1::Config& config,
                                                                     RegistrationsOptions options) {
  std::unique_ptr<Registrations> registrations(new Registrations(std::move(options)));
  Registrations* self = registrations.get();
  absl::StatusOr<std::unique_ptr<RouterDirectory>> directory =
      OpenRouterDirectory(config, [self](const std::vector<std::string>& routers) { self->OnRouters(routers); });
  if (!directory.ok()) return directory.status();
  self->directory_ = *std::move(directory);
  // A heartbeat cannot end on its own thread, where it is learnt that its router does not answer.
  self->reaper_.Start([self] {
    while (!self->reaper_.stopping()) {
      self->DropLost();
      self->reaper_.Sleep(kReapInterval);
    }
  });
  return registrations;
}

Registrations::~Registrations() {
  directory_.reset();
  reaper_.Stop();
  std::map<std::string, Router> routers;
  {
    MutexLock lock(&mu_);
    routers.swap(routers_);  // their ends, which wait for callbacks, are outside the lock
  }
}

void Registrations::OnRouters(const std::vector<std::string>& routers) {
  MutexLock lock(&mu_);
  for (auto& [address, router] : routers_) {
    router.listed = std::binary_search(routers.begin(), routers.end(), address);
  }
  for (const std::string& address : routers) {
    if (routers_.count(address) > 0) continue;
    if (absl::Status s = options_.heartbeat.security.CheckAddress("a router's address", address); !s.ok()) {
      LogError("a router is left out", {{"router", address}, {"error", s.message()}});
      continue;
    }
    rpc::HeartbeatOptions options = options_.heartbeat;
    options.router = address;
    options.on_change = [this, address](const absl::Status& status) { OnChange(address, status); };
    if (options_.heartbeat.on_answer) {
      options.on_answer = [this, address](const v1::HeartbeatResponse& answer) { OnAnswer(address, answer); };
    }
    Router& router = routers_[address];
    router.heartbeat = std::make_unique<rpc::Heartbeat>(std::move(options));
    if (draining_) router.heartbeat->SetDraining();
  }
}

void Registrations::OnChange(const std::string& router, const absl::Status& status) {
  int others = 0;
  {
    MutexLock lock(&mu_);
    for (auto& [address, known] : routers_) {
      if (address == router) {
        known.answers = status.ok();
      } else {
        others += known.heartbeat->registered();
      }
    }
  }
  if (options_.on_change) options_.on_change(router, status, others);
}

void Registrations::OnAnswer(const std::string& router, v1::HeartbeatResponse answer) {
  {
    MutexLock lock(&mu_);
    const auto it = routers_.find(router);
    if (it == routers_.end()) return;
    it->second.peers.assign(answer.peers().begin(), answer.peers().end());
    std::map<std::pair<std::string, std::string>, const v1::KvPeer*> all;  // by name and incarnation
    for (const auto& [address, known] : routers_) {
      for (const v1::KvPeer& peer : known.peers) all.emplace(std::pair(peer.name(), peer.incarnation()), &peer);
    }
    answer.clear_peers();
    for (const auto& [id, peer] : all) *answer.add_peers() = *peer;
  }
  options_.heartbeat.on_answer(answer);
}

void Registrations::DropLost() {
  std::vector<std::unique_ptr<rpc::Heartbeat>> lost;
  {
    MutexLock lock(&mu_);
    for (auto it = routers_.begin(); it != routers_.end();) {
      const auto next = std::next(it);
      if (!it->second.listed && !it->second.answers) {
        LogInfo("a router is gone: not listed and not answering", {{"router", it->first}});
        lost.push_back(std::move(it->second.heartbeat));
        routers_.erase(it);
      }
      it = next;
    }
  }
  lost.clear();  // outside the lock: it waits for callbacks, which take it
}

void Registrations::SetDraining() {
  MutexLock lock(&mu_);
  draining_ = true;
  for (auto& [address, router] : routers_) router.heartbeat->SetDraining();
}

void Registrations::Deregister() {
  directory_.reset();
  reaper_.Stop();
  std::map<std::string, Router> routers;
  {
    MutexLock lock(&mu_);
    routers.swap(routers_);
  }
  for (auto& [address, router] : routers) router.heartbeat->Deregister();
}

int Registrations::registered() const {
  MutexLock lock(&mu_);
  int count = 0;
  for (const auto& [address, router] : routers_) count += router.heartbeat->registered();
  return count;
}

}  // namespace baton::membership
