#include "tests/sim/sim_transport.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {

using kvtransfer::ClaimEnd;
using kvtransfer::FetchId;
using kvtransfer::HeartbeatInterval;
using kvtransfer::SilenceLimit;

// One attempt of one fetch.
struct SimTransport::Transfer final : public Connected, public std::enable_shared_from_this<Transfer> {
  SimTransport* client = nullptr;
  SimTransport* server = nullptr;
  FetchId id = 0;
  v1::Ticket ticket;
  kvtransfer::Claim claim;  // the server's; empty before Open and after its end
  int reads = 0;            // blocks whose bytes are still to be read
  bool broken = false;
  bool stopped = false;     // the receiver wants no more
  Pipe up, down;

  void ToServer(std::function<void()> what) {
    if (!broken) client->network_->Send(client->process_, server->process_, &up, std::move(what));
  }
  // In order, or (blocks) on their own.
  void ToClient(bool in_order, std::function<void()> what) {
    if (!broken) server->network_->Send(server->process_, client->process_, in_order ? &down : nullptr, std::move(what));
  }
  void Broken() override {
    broken = true;
    World* world = client->process_->world();
    const auto self = shared_from_this();
    client->process_->After(absl::Milliseconds(world->Below(30)), [self] { self->client->Lost(self->id, self); });
    server->process_->After(absl::Milliseconds(world->Below(30)), [self] { self->server->Pump(self); });
  }
};

SimTransport::SimTransport(Network* network, ProcessPtr process, kvtransfer::Exporter* exporter,
                           kvtransfer::ReceiverOptions receiver, Find find)
    : network_(network),
      process_(std::move(process)),
      exporter_(exporter),
      receiver_(std::move(receiver)),
      find_(std::move(find)) {
  v1::Endpoint endpoint;
  endpoint.set_worker_name(process_->name());
  endpoint.set_incarnation(process_->incarnation());
  endpoint.set_transport(kName);
  exporter_->AddEndpoint(endpoint);
}

void SimTransport::Shutdown() {
  while (!jobs_.empty()) {
    const JobPtr job = jobs_.begin()->second;
    jobs_.erase(jobs_.begin());
    kvcache::BlockLease destination = std::move(job->reception.destination());
    job->done(absl::CancelledError("the transport is shut down"), std::move(destination));
  }
  for (const auto& weak : serving_) {
    if (const auto transfer = weak.lock()) transfer->claim.Finish(ClaimEnd::kStopped);
  }
  serving_.clear();
}

FetchId SimTransport::Fetch(kvtransfer::FetchRequest request, kvtransfer::FetchCallback done) {
  const FetchId id = ++last_id_;
  seen_.push_back(request.ticket);
  if (seen_.size() > 8) seen_.pop_front();
  auto job = std::make_shared<Job>(
      Job{kvtransfer::Reception(&receiver_, kName, std::move(request)), std::move(done), nullptr});
  job->begun = process_->world()->now();
  jobs_.emplace(id, job);
  process_->Soon([this, id] { Begin(id); });
  process_->After(job->reception.deadline() - process_->world()->now(), [this, id] {
    End(id, absl::DeadlineExceededError("the deadline passed during the KV fetch"));
  });
  return id;
}

void SimTransport::Cancel(FetchId id) {
  process_->Soon([this, id] { End(id, absl::CancelledError("the fetch was cancelled")); });
}

SimTransport::JobPtr SimTransport::Live(FetchId id, const Transfer* transfer) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() || it->second->transfer.get() != transfer ? nullptr : it->second;
}

void SimTransport::Begin(FetchId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  const JobPtr job = it->second;
  if (absl::Status s = job->reception.Check(); !s.ok()) return End(id, s);
  SimTransport* server = find_(job->reception.endpoint());
  if (server == nullptr) {
    return process_->After(absl::Milliseconds(process_->world()->Below(20)),
                           [this, id] { End(id, absl::UnavailableError("connection refused")); });
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->client = this;
  transfer->server = server;
  transfer->id = id;
  transfer->ticket = job->reception.ticket();
  job->transfer = transfer;
  job->silent_at = process_->world()->now() + SilenceLimit(transfer->ticket);
  network_->Attach(process_, server->process_, transfer);
  transfer->ToServer([transfer, open = job->reception.Open(job->retries)] { transfer->server->Open(transfer, open); });
  Beat(id, transfer);
}

void SimTransport::Beat(FetchId id, const TransferPtr& transfer) {
  const JobPtr job = Live(id, transfer.get());
  if (job == nullptr) return;
  if (process_->world()->now() >= job->silent_at) {
    return End(id, absl::UnavailableError("the exporting worker fell silent during the KV fetch"));
  }
  transfer->ToServer([transfer] {
    if (transfer->claim) transfer->claim.Renew();
  });
  process_->After(HeartbeatInterval(transfer->ticket), [this, id, transfer] { Beat(id, transfer); });
}

void SimTransport::Lost(FetchId id, const TransferPtr& transfer) {
  const JobPtr job = Live(id, transfer.get());
  if (job == nullptr) return;
  if (!job->heard && job->retries < 3) {
    ++job->retries;
    job->transfer = nullptr;
    return process_->After(absl::Milliseconds(10 << job->retries), [this, id] {
      if (Live(id, nullptr) != nullptr) Begin(id);
    });
  }
  End(id, absl::UnavailableError("the connection to the exporting worker broke"));
}

void SimTransport::TakeBlock(FetchId id, const TransferPtr& transfer, const v1::BlockSeal& seal,
                             const std::string& bytes) {
  const JobPtr job = Live(id, transfer.get());
  if (job == nullptr) return;  // nobody's any more
  World* world = process_->world();
  job->heard = true;
  job->silent_at = world->now() + SilenceLimit(job->reception.ticket());
  const absl::StatusOr<std::span<std::byte>> to = job->reception.Place(seal, bytes.size());
  if (!to.ok()) return End(id, to.status());
  if (to->empty()) return;
  // The bytes land a moment later, whether or not somebody still waits for them then.
  ++*job->landing;
  process_->After(world->Between(absl::ZeroDuration(), absl::Milliseconds(1)),
                  [this, id, transfer, seal, to = *to, bytes, landing = job->landing, when = job->when_landed] {
    std::memcpy(to.data(), bytes.data(), bytes.size());
    --*landing;
    if (*landing == 0 && *when) std::exchange(*when, nullptr)();
    const JobPtr still = Live(id, transfer.get());
    if (still == nullptr) return;
    if (absl::Status s = still->reception.Arrived(seal.block_idx()); !s.ok()) return End(id, s);
    EndIfComplete(id);
  });
}

void SimTransport::TakeEnd(FetchId id, const TransferPtr& transfer, const v1::TransferEnd& end) {
  const JobPtr job = Live(id, transfer.get());
  if (job == nullptr) return;
  job->heard = true;
  if (absl::Status s = job->reception.TakeEnd(end); !s.ok()) return End(id, s);
  EndIfComplete(id);
}

void SimTransport::EndIfComplete(FetchId id) {
  const JobPtr job = jobs_.at(id);
  if (!job->reception.complete()) return;
  kvtransfer::FetchResult result = job->reception.Result("simulated");
  // Simulated time, so that what is measured repeats.
  result.stats.duration = process_->world()->now() - job->begun;
  result.stats.posting = result.stats.waiting = absl::ZeroDuration();
  End(id, std::move(result));
}

void SimTransport::End(FetchId id, absl::StatusOr<kvtransfer::FetchResult> result) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  const JobPtr job = it->second;
  jobs_.erase(it);
  if (const std::shared_ptr<Transfer> transfer = job->transfer; transfer != nullptr && !result.ok()) {
    transfer->ToServer([transfer] {
      transfer->stopped = true;
      transfer->server->Pump(transfer);
    });
  }
  kvcache::BlockLease destination = std::move(job->reception.destination());
  if (*job->landing > 0 && !destination.empty() && !frees_while_landing) {
    const std::shared_ptr<kvcache::BlockPool> pool = destination.pool()->shared_from_this();
    const uint64_t token = destination.Quarantine();
    *job->when_landed = [pool, token, world = process_->world()] {
      if (!pool->EndQuarantine(token).ok()) world->Violation("a quarantine ended twice");
    };
  }
  job->done(std::move(result), std::move(destination));
}

void SimTransport::Open(const TransferPtr& transfer, const v1::FetchOpen& open) {
  std::erase_if(serving_, [](const auto& t) { return t.expired(); });
  serving_.push_back(transfer);
  absl::StatusOr<kvtransfer::Claim> claim = exporter_->ClaimTicket(open);
  if (!claim.ok()) {
    v1::TransferEnd end;
    end.set_code(static_cast<uint32_t>(claim.status().code()));
    end.set_message(std::string(claim.status().message()));
    return transfer->ToClient(true, [transfer, end] { transfer->client->TakeEnd(transfer->id, transfer, end); });
  }
  transfer->claim = *std::move(claim);
  transfer->claim.SetWake([transfer] {
    transfer->server->process_->Soon([transfer] { transfer->server->Pump(transfer); });
  });
  ServerBeat(transfer);
  Pump(transfer);
}

void SimTransport::ServerBeat(const TransferPtr& transfer) {
  if (!transfer->claim) return;
  transfer->ToClient(true, [transfer] {
    if (const JobPtr job = transfer->client->Live(transfer->id, transfer.get())) {
      job->heard = true;
      job->silent_at = transfer->client->process_->world()->now() + SilenceLimit(transfer->ticket);
    }
  });
  process_->After(HeartbeatInterval(transfer->ticket), [transfer] { transfer->server->ServerBeat(transfer); });
}

void SimTransport::Pump(const TransferPtr& transfer) {
  if (!transfer->claim) return;
  if (transfer->broken || transfer->stopped) {
    if (transfer->reads == 0) transfer->claim.Finish(transfer->broken ? ClaimEnd::kBroken : ClaimEnd::kStopped);
    return;
  }
  World* world = process_->world();
  while (transfer->claim.HasBlock()) {
    const std::span<const std::byte> from = transfer->claim.bytes(transfer->claim.next_block());
    const v1::BlockSeal seal = transfer->claim.MakeSeal();
    ++transfer->reads;
    // As a rendezvous: the bytes are read when the receiver is ready.
    process_->After(world->Between(absl::ZeroDuration(), absl::Milliseconds(2)), [this, transfer, from, seal] {
      const std::string bytes(reinterpret_cast<const char*>(from.data()), from.size());
      --transfer->reads;
      SendBlock(transfer, seal, bytes);
      Pump(transfer);
    });
  }
  if (transfer->reads > 0 || (!transfer->claim.Done() && !transfer->claim.stop_requested())) return;
  const v1::TransferEnd end = transfer->claim.MakeEnd();
  const bool late = world->Chance(2);  // blocks may be overtaken by the end, or it waits for them
  transfer->ToClient(late, [transfer, end] { transfer->client->TakeEnd(transfer->id, transfer, end); });
  transfer->claim.Finish(end.code() == 0 ? ClaimEnd::kDelivered : ClaimEnd::kStopped);
}

void SimTransport::SendBlock(const TransferPtr& transfer, const v1::BlockSeal& seal,
                             const std::string& bytes) {
  World* world = process_->world();
  const int times = world->Chance(25) ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    std::string on_the_way = bytes;
    SimTransport* client = transfer->client;
    if (client->to_damage_ > 0) {
      --client->to_damage_;
      ++client->damaged_;
      on_the_way[world->Below(on_the_way.size())] ^= static_cast<char>(1 << world->Below(8));
    }
    transfer->ToClient(false, [transfer, seal, on_the_way] {
      transfer->client->TakeBlock(transfer->id, transfer, seal, on_the_way);
    });
  }
}

}  // namespace baton::sim
