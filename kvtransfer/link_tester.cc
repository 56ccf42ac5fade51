#include "kvtransfer/link_tester.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/locality.h"

namespace baton::kvtransfer {
namespace {

// One fetch's end, waited for. Shared with the callback, which may come after the waiter has given up.
struct Waiter {
  Mutex mu;
  CondVar cv;
  bool done ABSL_GUARDED_BY(mu) = false;
  absl::StatusOr<FetchStats> stats ABSL_GUARDED_BY(mu);
};

}  // namespace

LinkTester::LinkTester(LinkOptions options, TransportClient* client)
    : options_(std::move(options)), client_(client), thread_([this] { Run(); }) {}

void LinkTester::Stop() {
  FetchId fetch = 0;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    fetch = fetch_;
    cv_.SignalAll();
  }
  if (fetch != 0) client_->Cancel(fetch);
  if (thread_.joinable()) thread_.join();
}

void LinkTester::SetPeers(const std::vector<v1::KvPeer>& peers) {
  MutexLock lock(&mu_);
  std::map<PeerId, Peer> now;
  for (const v1::KvPeer& info : peers) {
    const PeerId id(info.name(), info.incarnation());
    if (auto it = peers_.find(id); it != peers_.end()) {
      now.insert(peers_.extract(it));
      continue;
    }
    Peer& peer = now[id];
    peer.info = info;
    peer.link.set_worker(info.name());
    peer.link.set_incarnation(info.incarnation());
    peer.link.set_state("new");
    peer.due = absl::InfinitePast();
    peer.backoff = options_.min_backoff;
    cv_.Signal();
  }
  peers_ = std::move(now);
}

std::vector<v1::KvLink> LinkTester::links() const {
  MutexLock lock(&mu_);
  std::vector<v1::KvLink> links;
  for (const auto& [id, peer] : peers_) links.push_back(peer.link);
  return links;
}

absl::Status LinkTester::Allowed(const v1::Endpoint& endpoint) const {
  MutexLock lock(&mu_);
  auto it = peers_.find({endpoint.worker_name(), endpoint.incarnation()});
  if (it == peers_.end()) return absl::OkStatus();
  const auto refused = it->second.refused.find(endpoint.transport());
  if (refused == it->second.refused.end() || absl::Now() >= refused->second) return absl::OkStatus();
  return absl::UnavailableError("measured below kv_link_floor_mb_s");
}

void LinkTester::Run() {
  for (;;) {
    std::optional<std::pair<PeerId, v1::KvPeer>> next;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !next.has_value()) {
        const absl::Time now = absl::Now();
        absl::Time earliest = absl::InfiniteFuture();
        for (const auto& [id, peer] : peers_) {
          if (peer.due <= now) next.emplace(id, peer.info);
          earliest = std::min(earliest, peer.due);
        }
        if (!next.has_value()) cv_.WaitWithTimeout(&mu_, std::min(earliest - now, absl::Minutes(1)));
      }
      if (stopping_) return;
    }
    Test(next->first, next->second);
  }
}

absl::StatusOr<std::string> LinkTester::LinkAddress(const v1::KvPeer& peer) const {
  for (const v1::Endpoint& endpoint : peer.endpoints()) {
    if (endpoint.transport() != "grpc" || !IsReachable(endpoint)) continue;
    if (absl::Status s = options_.security.CheckAddress("the worker's KV port", endpoint.address()); !s.ok()) return s;
    return endpoint.address();
  }
  return absl::FailedPreconditionError("the worker names no KV port that is reachable from here");
}

void LinkTester::Test(const PeerId& id, const v1::KvPeer& info) {
  absl::StatusOr<FetchStats> stats = absl::UnknownError("");
  if (absl::StatusOr<std::string> address = LinkAddress(info); address.ok()) {
    rpc::ChannelOptions channel;
    channel.security = options_.security;
    channel.peer = options_.peer;
    channel.own_connection = true;
    channel.retry_unavailable = false;
    auto stub = v1::KvTransport::NewStub(rpc::CreateChannel(*address, channel));
    stats = FetchOnce(stub.get(), info);
    if (stats.ok()) stats = FetchOnce(stub.get(), info);
  } else {
    stats = address.status();
  }
  v1::KvLink link;
  {
    MutexLock lock(&mu_);
    auto it = peers_.find(id);
    if (it == peers_.end() || stopping_) return;  // no peer any more
    Peer& peer = it->second;
    const absl::Time now = absl::Now();
    std::erase_if(peer.refused, [&](const auto& entry) { return now >= entry.second; });
    if (!stats.ok()) {
      peer.link.set_state(peer.refused.empty() ? "failed" : "refused");
      peer.link.set_error(std::string(stats.status().message().substr(0, 256)));
      peer.due = now + peer.backoff;
      peer.backoff = std::min(peer.backoff * 2, options_.max_backoff);
    } else {
      const double speed = stats->gigabytes_per_second() * 1e9;
      const bool slow = speed < options_.floor_bytes_per_second;
      peer.due = absl::InfiniteFuture();
      peer.backoff = options_.min_backoff;
      peer.link.set_transport(stats->transport);
      peer.link.set_detail(stats->detail);
      peer.link.set_gigabytes_per_second(stats->gigabytes_per_second());
      peer.link.set_state(!slow ? "ok" : options_.refuse_below_floor ? "refused" : "slow");
      peer.link.clear_error();
      if (slow) {
        peer.link.set_error(absl::StrFormat("%.0f MB/s, the floor is %.0f", speed / 1e6,
                                            options_.floor_bytes_per_second / 1e6));
      }
      if (slow && options_.refuse_below_floor) {
        peer.refused[stats->transport] = now + options_.refusal_time;
        peer.due = absl::InfinitePast();  // the next transport, if there is one; else the attempts become rare
      } else {
        for (const auto& [transport, until] : peer.refused) peer.due = std::min(peer.due, until);
      }
    }
    link = peer.link;
  }
  if (options_.on_result) options_.on_result(link);
}

absl::StatusOr<FetchStats> LinkTester::FetchOnce(v1::KvTransport::Stub* stub, const v1::KvPeer& peer) {
  const absl::Time deadline = absl::Now() + options_.test_timeout;
  grpc::ClientContext context;
  rpc::SetDeadline(&context, deadline);
  v1::OpenLinkRequest request;
  request.set_max_bytes(options_.test_bytes);
  request.set_worker_name(peer.name());
  request.set_incarnation(peer.incarnation());
  v1::OpenLinkResponse response;
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("stopping");
    call_ = &context;
  }
  const grpc::Status opened = stub->OpenLink(&context, request, &response);
  {
    MutexLock lock(&mu_);
    call_ = nullptr;
    if (stopping_) return absl::CancelledError("stopping");
  }
  if (!opened.ok()) return FromGrpcStatus(opened);
  const int64_t num_blocks = response.ticket().blocks_size();
  if (num_blocks <= 0 || static_cast<uint64_t>(num_blocks - 1) * options_.layout.block_bytes() > options_.test_bytes) {
    return absl::DataLossError("OpenLink answered with a ticket of another size than asked for");
  }
  absl::StatusOr<std::shared_ptr<kvcache::BlockPool>> pool = kvcache::BlockPool::Create(options_.layout, num_blocks);
  if (!pool.ok()) return pool.status();
  FetchRequest fetch;
  fetch.ticket = std::move(*response.mutable_ticket());
  fetch.destination = *(*pool)->AllocateLease(num_blocks);
  // Pages are there, as in a pool that has been used.
  for (size_t i = 0; i < fetch.destination.blocks().size(); ++i) {
    std::fill(fetch.destination.bytes(i).begin(), fetch.destination.bytes(i).end(), std::byte{1});
  }
  fetch.deadline = deadline;
  auto waiter = std::make_shared<Waiter>();
  const FetchId id = client_->Fetch(std::move(fetch), [waiter](absl::StatusOr<FetchResult> result, kvcache::BlockLease) {
    MutexLock lock(&waiter->mu);
    if (result.ok()) {
      waiter->stats = result->stats;
    } else {
      waiter->stats = absl::Status(result.status().code(), result.status().message());
    }
    waiter->done = true;
    waiter->cv.SignalAll();
  });
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    fetch_ = id;
    stopping = stopping_;
  }
  if (stopping) client_->Cancel(id);
  // The fetch ends by its own deadline at the latest.
  absl::StatusOr<FetchStats> stats = absl::UnknownError("");
  {
    MutexLock lock(&waiter->mu);
    while (!waiter->done) waiter->cv.Wait(&waiter->mu);
    stats = std::move(waiter->stats);
  }
  MutexLock lock(&mu_);
  fetch_ = 0;
  return stats;
}

}  // namespace baton::kvtransfer
