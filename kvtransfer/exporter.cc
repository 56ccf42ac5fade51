#include "kvtransfer/exporter.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::kvtransfer {

// `ticket` and `lease` do not change between the claim and its end, so a claim's holder reads them without the lock.
struct Exporter::Export_ {
  v1::Ticket ticket;
  kvcache::BlockLease lease;
  absl::Time deadline;
  TransferState state = TransferState::kOffered;  // guarded by Exporter::mu_
  std::atomic<bool> stop_requested{false};
};

absl::string_view Name(Refusal refusal) {
  constexpr const char* kNames[kNumRefusals] = {"malformed", "forged",  "incarnation", "unknown",
                                                "consumed",  "expired", "mismatch",    "generation"};
  return kNames[static_cast<int>(refusal)];
}

Exporter::Exporter(Options options) : options_(std::move(options)) {
  if (options_.reap_interval > absl::ZeroDuration()) reaper_ = std::thread([this] { ReapLoop(); });
}

Exporter::~Exporter() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    stop_cv_.SignalAll();
  }
  if (reaper_.joinable()) reaper_.join();
  ReleaseAll();
}

void Exporter::ReapLoop() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (!stopping_) stop_cv_.WaitWithTimeout(&mu_, options_.reap_interval);
      if (stopping_) return;
    }
    ReapExpired(options_.clock->Now());
  }
}

void Exporter::SetEndpoint(v1::Endpoint endpoint) {
  MutexLock lock(&mu_);
  endpoint_ = std::move(endpoint);
}

absl::StatusOr<v1::Ticket> Exporter::Export(absl::string_view request_id, uint32_t epoch, kvcache::BlockLease lease,
                                            uint32_t num_tokens, absl::Duration lease_duration) {
  auto e = std::make_shared<Export_>();
  v1::Ticket& ticket = e->ticket;
  ticket.set_request_id(std::string(request_id));
  ticket.set_epoch(epoch);
  const TransferId id = TransferId::Random();
  ticket.set_transfer_id_high(id.high);
  ticket.set_transfer_id_low(id.low);
  *ticket.mutable_layout() = LayoutToProto(options_.layout);
  *ticket.mutable_fingerprint() = options_.fingerprint;
  ticket.set_num_tokens(num_tokens);
  const int64_t lease_ms = absl::ToInt64Milliseconds(lease_duration);
  ticket.set_lease_ms(lease_ms < 0 ? 0 : static_cast<uint64_t>(lease_ms));
  {
    MutexLock lock(&mu_);
    if (endpoint_.incarnation().empty()) {
      return absl::FailedPreconditionError("no transport serves this exporter yet; start one before exporting");
    }
    *ticket.mutable_endpoint() = endpoint_;
  }
  if (!lease.Valid()) return absl::InvalidArgumentError("the exported lease holds outdated blocks");
  for (size_t i = 0; i < lease.blocks().size(); ++i) {
    if (lease.bytes(i).size() != options_.layout.block_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("the exported lease's blocks have ", lease.bytes(i).size(),
                                                     " bytes, the layout says ", options_.layout.block_bytes()));
    }
    v1::BlockSlot* slot = ticket.add_blocks();
    slot->set_block_id(static_cast<uint32_t>(lease.blocks()[i].id));
    slot->set_generation(lease.blocks()[i].generation);
    slot->set_checksum(BlockChecksum(lease.bytes(i)));
  }
  SignTicket(options_.key, &ticket);
  if (absl::Status shape = CheckTicketShape(ticket); !shape.ok()) return shape;

  e->lease = std::move(lease);
  v1::Ticket result = ticket;
  kvcache::BlockLease freed;  // dropped after the lock
  MutexLock lock(&mu_);
  if (absl::Status s = Supersede(request_id, epoch, &freed); !s.ok()) return s;
  if (exports_.size() >= options_.max_outstanding) {
    return absl::ResourceExhaustedError(absl::StrCat("this worker already holds ", exports_.size(),
                                                     " exports that were not fetched; retry later"));
  }
  e->deadline = options_.clock->Now() + absl::Milliseconds(lease_ms);
  exports_.emplace(id, std::move(e));
  by_request_[std::string(request_id)] = id;
  ++counters_.exported;
  return result;
}

absl::Status Exporter::Supersede(absl::string_view request_id, uint32_t epoch, kvcache::BlockLease* freed) {
  auto named = by_request_.find(std::string(request_id));
  if (named == by_request_.end()) return absl::OkStatus();
  auto it = exports_.find(named->second);
  if (it == exports_.end()) return absl::OkStatus();
  if (it->second->ticket.epoch() >= epoch) {
    return absl::AbortedError(absl::StrCat("request ", std::string(request_id), " is already exported at epoch ",
                                           it->second->ticket.epoch(), "; epoch ", epoch, " is stale"));
  }
  if (Apply(it, TransferEvent::kRelease, freed)) ++counters_.superseded;
  return absl::OkStatus();
}

bool Exporter::Apply(Exports::iterator it, TransferEvent event, kvcache::BlockLease* freed) {
  Export_& e = *it->second;
  const TransferStep step = NextTransferStep(e.state, event);
  e.state = step.next;
  switch (step.action) {
    case TransferAction::kNone:
    case TransferAction::kRefuse:
      return false;
    case TransferAction::kImpossible:
      ++counters_.impossible;
      return false;
    case TransferAction::kStartSend:
      ++counters_.in_flight;
      return true;
    case TransferAction::kStopSend:
      e.stop_requested.store(true, std::memory_order_release);
      return true;
    case TransferAction::kFree: {
      if (event == TransferEvent::kQuiet) --counters_.in_flight;
      *freed = std::move(e.lease);
      auto named = by_request_.find(e.ticket.request_id());
      if (named != by_request_.end() && named->second == it->first) by_request_.erase(named);
      exports_.erase(it);
      return true;
    }
  }
  return false;
}

absl::Status Exporter::Refuse(Refusal why, absl::StatusCode code, absl::string_view what) {
  MutexLock lock(&mu_);
  ++counters_.refusals[static_cast<int>(why)];
  return absl::Status(code, what);
}

absl::StatusOr<Claim> Exporter::ClaimTicket(const v1::Ticket& ticket) {
  if (absl::Status s = CheckTicketShape(ticket); !s.ok()) return Refuse(Refusal::kMalformed, s.code(), s.message());
  if (absl::Status s = VerifyMac(options_.key, ticket); !s.ok()) return Refuse(Refusal::kForged, s.code(), s.message());
  constexpr absl::StatusCode kAborted = absl::StatusCode::kAborted;
  if (ticket.endpoint().incarnation() != options_.incarnation ||
      ticket.endpoint().worker_name() != options_.worker_name) {
    return Refuse(Refusal::kIncarnation, kAborted,
                  "the ticket is of another worker, or of this one before it restarted; prefill again");
  }
  kvcache::BlockLease freed;
  std::shared_ptr<Export_> e;
  Refusal why = Refusal::kUnknown;
  absl::string_view what = "the ticket's KV is no longer held (fetched, released or expired); prefill again";
  {
    MutexLock lock(&mu_);
    auto it = exports_.find(TransferId::Of(ticket));
    if (it == exports_.end()) {
    } else if (it->second->ticket.epoch() != ticket.epoch() || it->second->ticket.mac() != ticket.mac()) {
      // Both MACs are genuine, so this is not an attack that a timing difference could help.
      why = Refusal::kMismatch;
      what = "the ticket differs from the one issued for this transfer; prefill again";
    } else if (it->second->state != TransferState::kOffered) {
      Apply(it, TransferEvent::kClaim, &freed);
      why = Refusal::kConsumed;
      what = "the ticket is already being fetched; one ticket is good for one fetch";
    } else if (options_.clock->Now() >= it->second->deadline) {
      if (Apply(it, TransferEvent::kExpire, &freed)) ++counters_.expired;
      why = Refusal::kExpired;
      what = "the ticket's lease has expired; prefill again";
    } else if (!it->second->lease.Valid()) {
      Apply(it, TransferEvent::kRelease, &freed);
      why = Refusal::kGeneration;
      what = "a block of the ticket no longer holds what was exported; prefill again";
    } else {
      e = it->second;
      Apply(it, TransferEvent::kClaim, &freed);
    }
  }
  if (e == nullptr) return Refuse(why, kAborted, what);
  return Claim(this, std::move(e));
}

bool Exporter::Release(TransferId id) {
  kvcache::BlockLease freed;
  MutexLock lock(&mu_);
  auto it = exports_.find(id);
  if (it == exports_.end() || !Apply(it, TransferEvent::kRelease, &freed)) return false;
  ++counters_.released;
  return true;
}

bool Exporter::ReleaseRequest(absl::string_view request_id, uint32_t epoch) {
  kvcache::BlockLease freed;
  MutexLock lock(&mu_);
  auto named = by_request_.find(std::string(request_id));
  if (named == by_request_.end()) return false;
  auto it = exports_.find(named->second);
  if (it == exports_.end() || it->second->ticket.epoch() > epoch || !Apply(it, TransferEvent::kRelease, &freed)) {
    return false;
  }
  ++counters_.released;
  return true;
}

size_t Exporter::ReapExpired(absl::Time now) {
  std::vector<kvcache::BlockLease> freed;
  MutexLock lock(&mu_);
  size_t ended = 0;
  for (auto it = exports_.begin(); it != exports_.end();) {
    const auto next = std::next(it);
    if (now >= it->second->deadline) {
      kvcache::BlockLease lease;
      if (Apply(it, TransferEvent::kExpire, &lease)) ++ended;
      freed.push_back(std::move(lease));
    }
    it = next;
  }
  counters_.expired += ended;
  return ended;
}

size_t Exporter::ReleaseAll() {
  std::vector<TransferId> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, e] : exports_) ids.push_back(id);
  }
  size_t released = 0;
  for (TransferId id : ids) released += Release(id);
  return released;
}

void Exporter::EndClaim(const std::shared_ptr<Export_>& e, bool all_sent) {
  kvcache::BlockLease freed;
  MutexLock lock(&mu_);
  auto it = exports_.find(TransferId::Of(e->ticket));
  if (it == exports_.end()) {
    ++counters_.impossible;
    return;
  }
  all_sent = all_sent && e->state == TransferState::kClaimed;
  if (all_sent) counters_.bytes_sent += e->lease.blocks().size() * options_.layout.block_bytes();
  ++(all_sent ? counters_.completed : counters_.failed);
  Apply(it, TransferEvent::kQuiet, &freed);
}

Exporter::Counters Exporter::counters() const {
  MutexLock lock(&mu_);
  Counters c = counters_;
  c.outstanding = exports_.size();
  return c;
}

Claim& Claim::operator=(Claim&& other) noexcept {
  if (this != &other) {
    Finish(false);
    exporter_ = other.exporter_;
    export_ = std::move(other.export_);
  }
  return *this;
}

Claim::~Claim() { Finish(false); }

TransferId Claim::id() const { return TransferId::Of(export_->ticket); }
size_t Claim::num_blocks() const { return static_cast<size_t>(export_->ticket.blocks_size()); }
std::span<const std::byte> Claim::bytes(size_t block_idx) const { return export_->lease.bytes(block_idx); }
const v1::BlockSlot& Claim::slot(size_t block_idx) const { return export_->ticket.blocks(static_cast<int>(block_idx)); }
bool Claim::stop_requested() const { return export_->stop_requested.load(std::memory_order_acquire); }

absl::Status Claim::CheckStillValid() const {
  if (stop_requested()) return absl::AbortedError("the export was released or expired while it was sent; prefill again");
  if (!export_->lease.Valid()) {
    return absl::AbortedError("a block changed hands while it was sent; the bytes must not be used, prefill again");
  }
  return absl::OkStatus();
}

void Claim::Finish(bool all_sent) {
  if (export_ == nullptr) return;
  exporter_->EndClaim(export_, all_sent);
  export_.reset();
}

}  // namespace baton::kvtransfer
