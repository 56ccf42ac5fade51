#include "kvtransfer/failover_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/locality.h"

namespace baton::kvtransfer {

struct FailoverClient::Call {
  FetchId id = 0;
  v1::Ticket ticket;
  uint32_t first_block = 0;
  uint32_t attempt = 1;
  absl::Time deadline;
  FetchCallback done;
  std::vector<v1::Endpoint> ways;  // still to try; the current one in front
  // Guarded by FailoverClient::mu_.
  bool cancelled = false;
  TransportClient* running = nullptr;  // with `running_id`, once its Fetch has returned
  FetchId running_id = 0;
};

FailoverClient::FailoverClient(std::vector<std::unique_ptr<TransportClient>> transports, FailoverOptions options)
    : transports_(std::move(transports)), options_(std::move(options)) {}

TransportClient* FailoverClient::transport(absl::string_view name) const {
  for (const auto& transport : transports_) {
    if (transport->name() == name) return transport.get();
  }
  return nullptr;
}

std::vector<v1::Endpoint> FailoverClient::Ways(const v1::Ticket& ticket, absl::Status* why_not) const {
  std::vector<v1::Endpoint> ways;
  std::string reasons;
  const auto consider = [&](const v1::Endpoint& endpoint) {
    absl::Status why;
    if (transport(endpoint.transport()) == nullptr) {
      why = absl::FailedPreconditionError("not a transport of this worker");
    } else if (!IsReachable(endpoint)) {
      why = absl::FailedPreconditionError("on another host's loopback");
    } else if (options_.allowed != nullptr) {
      why = options_.allowed(endpoint);
    }
    if (why.ok()) return ways.push_back(endpoint);
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", endpoint.transport(), ": ", why.message());
  };
  consider(ticket.endpoint());
  for (const v1::Endpoint& fallback : ticket.fallbacks()) consider(fallback);
  if (ways.empty()) {
    *why_not = absl::FailedPreconditionError(
        absl::StrCat("no KV transport reaches worker ", ticket.endpoint().worker_name(), " (", reasons,
                     "); see kv_transport and kv_network_trusted"));
    return ways;
  }
  const absl::Time now = absl::Now();
  MutexLock lock(&mu_);
  std::stable_partition(ways.begin(), ways.end(), [&](const v1::Endpoint& e) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto it = links_.find({e.worker_name(), e.incarnation(), e.transport()});
    return it == links_.end() || now >= it->second.rest_until;
  });
  return ways;
}

std::string FailoverClient::Preferred(const v1::Ticket& ticket) const {
  absl::Status why_not;
  const std::vector<v1::Endpoint> ways = Ways(ticket, &why_not);
  return ways.empty() ? "" : ways.front().transport();
}

FetchId FailoverClient::Fetch(FetchRequest request, FetchCallback done) {
  auto call = std::make_shared<Call>();
  call->ticket = std::move(request.ticket);
  call->first_block = request.first_block;
  call->attempt = request.attempt;
  call->deadline = request.deadline;
  call->done = std::move(done);
  absl::Status why_not;
  call->ways = Ways(call->ticket, &why_not);
  FetchId id = 0;
  {
    MutexLock lock(&mu_);
    id = call->id = ++last_id_;
    if (stopping_) why_not = absl::CancelledError("the transport is shut down");
    if (why_not.ok()) calls_[id] = call;
  }
  if (!why_not.ok()) {
    call->done(why_not, std::move(request.destination));
  } else {
    Try(std::move(call), std::move(request.destination));
  }
  return id;
}

void FailoverClient::Try(std::shared_ptr<Call> call, kvcache::BlockLease destination) {
  TransportClient* client = transport(call->ways.front().transport());
  FetchRequest request;
  request.ticket = call->ticket;
  request.first_block = call->first_block;
  request.attempt = call->attempt;
  request.destination = std::move(destination);
  request.deadline = call->deadline;
  const FetchId running_id =
      client->Fetch(std::move(request), [this, call](absl::StatusOr<FetchResult> result, kvcache::BlockLease lease) {
        OnResult(call, std::move(result), std::move(lease));
      });
  bool cancel = false;
  {
    // The callback may have run already, and even begun the next attempt; then this one's id is of no use.
    MutexLock lock(&mu_);
    if (transport(call->ways.front().transport()) == client) {
      call->running = client;
      call->running_id = running_id;
      cancel = call->cancelled;
    }
  }
  if (cancel) client->Cancel(running_id);
}

void FailoverClient::OnResult(std::shared_ptr<Call> call, absl::StatusOr<FetchResult> result,
                              kvcache::BlockLease destination) {
  const v1::Endpoint endpoint = call->ways.front();
  const bool link_broke = absl::IsUnavailable(result.status());
  if (result.ok() || link_broke) NoteLink(endpoint, result.ok());
  const bool had_room = call->first_block < static_cast<uint32_t>(call->ticket.blocks_size());
  bool again = link_broke && call->ways.size() > 1 && absl::Now() < call->deadline &&
               (!had_room || !destination.empty());  // else bytes may still arrive there
  {
    MutexLock lock(&mu_);
    again = again && !call->cancelled && !stopping_;
    if (again) {
      call->ways.erase(call->ways.begin());
      ++call->attempt;
      call->running = nullptr;
    }
  }
  if (!again) return End(call, std::move(result), std::move(destination));
  if (options_.on_failover) options_.on_failover(endpoint, call->ways.front().transport(), result.status());
  Try(std::move(call), std::move(destination));
}

void FailoverClient::End(const std::shared_ptr<Call>& call, absl::StatusOr<FetchResult> result,
                         kvcache::BlockLease destination) {
  {
    MutexLock lock(&mu_);
    calls_.erase(call->id);
  }
  call->done(std::move(result), std::move(destination));
}

void FailoverClient::NoteLink(const v1::Endpoint& endpoint, bool ok) {
  const LinkId id(endpoint.worker_name(), endpoint.incarnation(), endpoint.transport());
  const absl::Time now = absl::Now();
  MutexLock lock(&mu_);
  if (ok) {
    links_.erase(id);
    return;
  }
  // What has rested long enough to count as new is forgotten, so that dead incarnations do not pile up.
  std::erase_if(links_, [&](const auto& entry) { return now > entry.second.rest_until + 2 * options_.max_rest; });
  Link& link = links_[id];
  link.rest = std::clamp(link.rest * 2, options_.min_rest, options_.max_rest);
  link.rest_until = now + link.rest;
}

void FailoverClient::Cancel(FetchId id) {
  TransportClient* client = nullptr;
  FetchId running_id = 0;
  {
    MutexLock lock(&mu_);
    auto it = calls_.find(id);
    if (it == calls_.end()) return;
    it->second->cancelled = true;
    client = it->second->running;
    running_id = it->second->running_id;
  }
  if (client != nullptr) client->Cancel(running_id);
}

void FailoverClient::Shutdown() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (const auto& transport : transports_) transport->Shutdown();
}

}  // namespace baton::kvtransfer
