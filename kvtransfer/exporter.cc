#include "kvtransfer/exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/export_record.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {
namespace {

absl::Status Expired() {
  return absl::AbortedError("the lease of the KV ended: its receiver was not heard of in time; prefill again");
}

}  // namespace

Exporter::Exporter(Options options) : options_(std::move(options)) {
  {
    MutexLock lock(&door_->mu);
    door_->exporter = this;
  }
  if (options_.reap_interval > absl::ZeroDuration()) reaper_ = std::thread([this] { ReapLoop(); });
}

Exporter::~Exporter() {
  {
    MutexLock lock(&door_->mu);
    door_->exporter = nullptr;
  }
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

void Exporter::Finish(After after) {
  after.freed.clear();
  for (const std::shared_ptr<ExportRecord>& e : after.over) {
    if (!e->on_over) continue;
    const absl::Status why = e->end_reason.ok() ? absl::AbortedError("the ticket was given back") : e->end_reason;
    std::exchange(e->on_over, nullptr)(e->delivered ? absl::OkStatus() : why);
  }
  for (const std::shared_ptr<ExportReader>& reader : after.wake) {
    MutexLock lock(&reader->wake_mu);
    if (reader->wake) reader->wake();
  }
  for (After::HostCopy& copy : after.copies) {
    options_.copy_to_host(std::move(copy.blocks), [door = door_, id = copy.id, end = copy.end] {
      MutexLock lock(&door->mu);
      if (door->exporter != nullptr) door->exporter->OnHost(id, end);
    });
  }
}

void Exporter::AskForHostCopies(Exports::iterator it, After* after) {
  ExportRecord& e = *it->second;
  const size_t sealed = e.num_sealed.load(std::memory_order_relaxed);
  const bool wanted = std::any_of(e.readers.begin(), e.readers.end(), [](const auto& r) { return !r->from_device; });
  if (!e.on_device || !wanted || e.host_asked >= sealed || e.state == TransferState::kClosing) return;
  after->copies.push_back({it->first, e.lease.Share(e.host_asked, sealed), sealed});
  e.host_asked = sealed;
}

void Exporter::OnHost(TransferId id, size_t end) {
  After after;
  {
    MutexLock lock(&mu_);
    auto it = exports_.find(id);
    if (it == exports_.end() || it->second->state == TransferState::kClosing) return;
    std::atomic<size_t>& on_host = it->second->num_on_host;
    on_host.store(std::max(end, on_host.load(std::memory_order_relaxed)), std::memory_order_release);
    Apply(it, TransferEvent::kProgress, &after);
  }
  Finish(std::move(after));
}

void Exporter::AddEndpoint(v1::Endpoint endpoint) {
  MutexLock lock(&mu_);
  for (v1::Endpoint& known : endpoints_) {
    if (known.transport() != endpoint.transport()) continue;
    known = std::move(endpoint);
    return;
  }
  endpoints_.push_back(std::move(endpoint));
}

absl::StatusOr<v1::Ticket> Exporter::MakeTicket(const ExportSpec& spec, const kvcache::BlockLease& lease) const {
  v1::Ticket ticket;
  ticket.set_request_id(spec.request_id);
  ticket.set_epoch(spec.epoch);
  const TransferId id = options_.new_id();
  ticket.set_transfer_id_high(id.high);
  ticket.set_transfer_id_low(id.low);
  *ticket.mutable_layout() = LayoutToProto(options_.layout);
  *ticket.mutable_fingerprint() = options_.fingerprint;
  ticket.set_num_tokens(spec.num_tokens);
  ticket.set_num_consumers(spec.num_consumers);
  ticket.set_block_tags(options_.block_tags);
  const int64_t lease_ms = absl::ToInt64Milliseconds(spec.lease);
  ticket.set_lease_ms(lease_ms < 0 ? 0 : static_cast<uint64_t>(lease_ms));
  {
    MutexLock lock(&mu_);
    if (endpoints_.empty()) {
      return absl::FailedPreconditionError("no transport serves this exporter yet; start one before exporting");
    }
    *ticket.mutable_endpoint() = endpoints_.front();
    for (size_t i = 1; i < endpoints_.size(); ++i) *ticket.add_fallbacks() = endpoints_[i];
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
  }
  SignTicket(options_.key, &ticket);
  if (absl::Status shape = CheckTicketShape(ticket); !shape.ok()) return shape;
  return ticket;
}

absl::StatusOr<v1::Ticket> Exporter::Export(const ExportSpec& spec, kvcache::BlockLease lease) {
  absl::StatusOr<v1::Ticket> ticket = MakeTicket(spec, lease);
  if (!ticket.ok()) return ticket.status();
  auto e = std::make_shared<ExportRecord>();
  e->ticket = *ticket;
  e->lease = std::move(lease);
  e->on_device = options_.copy_to_host != nullptr && e->lease.pool() != nullptr && e->lease.pool()->device() != nullptr;
  e->lease_duration = Lease(*ticket);
  e->on_over = spec.on_over;
  e->uses_left = spec.num_consumers;
  e->issued = options_.clock->Now();
  e->deadline = spec.open_until;
  After after;
  {
    MutexLock lock(&mu_);
    if (absl::Status s = Supersede(spec.request_id, spec.epoch, &after); !s.ok()) return s;
    if (exports_.size() >= options_.max_outstanding) {
      return absl::ResourceExhaustedError(absl::StrCat("this worker already holds ", exports_.size(),
                                                       " exports that were not fetched; retry later"));
    }
    const TransferId id = TransferId::Of(*ticket);
    exports_.emplace(id, std::move(e));
    by_request_[spec.request_id] = id;
    ++counters_.exported;
  }
  Finish(std::move(after));
  return ticket;
}

absl::StatusOr<v1::Ticket> Exporter::ExportSealed(const ExportSpec& spec, kvcache::BlockLease lease) {
  const size_t num_blocks = lease.blocks().size();
  absl::StatusOr<v1::Ticket> ticket = Export(spec, std::move(lease));
  if (!ticket.ok()) return ticket;
  const TransferId id = TransferId::Of(*ticket);
  Seal(id, num_blocks);
  Close(id, /*finished=*/false, "");
  return ticket;
}

bool Exporter::Seal(TransferId id, size_t num_sealed) {
  After after;
  {
    MutexLock lock(&mu_);
    auto it = exports_.find(id);
    if (it == exports_.end() || it->second->state == TransferState::kClosing) return false;
    ExportRecord& e = *it->second;
    num_sealed = std::min(num_sealed, e.lease.blocks().size());
    if (num_sealed <= e.num_sealed.load(std::memory_order_relaxed)) return true;
    e.num_sealed.store(num_sealed, std::memory_order_release);
    Apply(it, TransferEvent::kProgress, &after);
    AskForHostCopies(it, &after);
  }
  Finish(std::move(after));
  return true;
}

bool Exporter::Close(TransferId id, bool finished, std::string payload) {
  After after;
  {
    MutexLock lock(&mu_);
    auto it = exports_.find(id);
    if (it == exports_.end() || it->second->state == TransferState::kClosing || it->second->closed) return false;
    ExportRecord& e = *it->second;
    if (payload.size() > kMaxEndPayloadBytes) {
      e.end_reason = absl::InternalError(absl::StrCat("the hand-over's last word has ", payload.size(), " bytes; at most ",
                                                      kMaxEndPayloadBytes, " fit"));
      Apply(it, TransferEvent::kRelease, &after);
    } else {
      e.finished = finished;
      e.payload = std::move(payload);
      if (!finished) e.num_sealed.store(e.lease.blocks().size(), std::memory_order_release);
      e.closed.store(true, std::memory_order_release);
      e.deadline = options_.clock->Now() + e.lease_duration;
      Apply(it, TransferEvent::kProgress, &after);
      AskForHostCopies(it, &after);
    }
  }
  Finish(std::move(after));
  return true;
}

absl::Status Exporter::Supersede(const std::string& request_id, uint32_t epoch, After* after) {
  auto named = by_request_.find(request_id);
  if (named == by_request_.end()) return absl::OkStatus();
  auto it = exports_.find(named->second);
  if (it == exports_.end()) return absl::OkStatus();
  if (it->second->ticket.epoch() >= epoch) {
    return absl::AbortedError(absl::StrCat("request ", request_id, " is already exported at epoch ",
                                           it->second->ticket.epoch(), "; epoch ", epoch, " is stale"));
  }
  it->second->end_reason = absl::AbortedError("a newer attempt of the request replaced this export");
  if (Apply(it, TransferEvent::kRelease, after)) ++counters_.superseded;
  return absl::OkStatus();
}

bool Exporter::Apply(Exports::iterator it, TransferEvent event, After* after) {
  ExportRecord& e = *it->second;
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
      return true;
    case TransferAction::kWake:
      after->wake.insert(after->wake.end(), e.readers.begin(), e.readers.end());
      return true;
    case TransferAction::kStopSend:
      if (event == TransferEvent::kExpire) e.end_reason = Expired();
      for (const std::shared_ptr<ExportReader>& reader : e.readers) {
        reader->Stop(!e.end_reason.ok() ? e.end_reason : absl::AbortedError("the export was released; prefill again"));
      }
      after->wake.insert(after->wake.end(), e.readers.begin(), e.readers.end());
      return true;
    case TransferAction::kFree: {
      after->freed.push_back(std::move(e.lease));
      if (event == TransferEvent::kExpire) e.end_reason = Expired();
      after->over.push_back(it->second);
      auto named = by_request_.find(e.ticket.request_id());
      if (named != by_request_.end() && named->second == it->first) by_request_.erase(named);
      exports_.erase(it);
      return true;
    }
  }
  return false;
}

bool Exporter::EndExport(TransferId id, absl::Status why) {
  After after;
  bool ended = false;
  {
    MutexLock lock(&mu_);
    auto it = exports_.find(id);
    if (it == exports_.end()) return false;
    if (it->second->state != TransferState::kClosing) it->second->end_reason = std::move(why);
    ended = Apply(it, TransferEvent::kRelease, &after);
    counters_.released += ended;
  }
  Finish(std::move(after));
  return ended;
}

bool Exporter::Release(TransferId id) { return EndExport(id, absl::OkStatus()); }
bool Exporter::Fail(TransferId id, absl::Status why) { return EndExport(id, std::move(why)); }

bool Exporter::ReleaseRequest(absl::string_view request_id, uint32_t epoch) {
  TransferId id;
  {
    MutexLock lock(&mu_);
    auto named = by_request_.find(std::string(request_id));
    if (named == by_request_.end()) return false;
    auto it = exports_.find(named->second);
    if (it == exports_.end() || it->second->ticket.epoch() > epoch) return false;
    id = named->second;
  }
  return Release(id);
}

size_t Exporter::ReapExpired(absl::Time now) {
  After after;
  size_t ended = 0;
  {
    MutexLock lock(&mu_);
    for (auto it = exports_.begin(); it != exports_.end();) {
      const auto next = std::next(it);
      ExportRecord& e = *it->second;
      size_t silent = 0, alive = 0;
      for (const std::shared_ptr<ExportReader>& r : e.readers) {
        if (r->stop) continue;
        ++(now >= r->heard + e.lease_duration ? silent : alive);
      }
      const bool nobody_left = silent > 0 && alive == 0 && e.uses_left == 0;
      if (nobody_left || (e.readers.empty() && now >= e.deadline)) {
        ended += Apply(it, TransferEvent::kExpire, &after);
      } else if (silent > 0 && e.state == TransferState::kReading) {
        for (const std::shared_ptr<ExportReader>& r : e.readers) {
          if (r->stop || now < r->heard + e.lease_duration) continue;
          r->Stop(Expired());
          after.wake.push_back(r);
          ++ended;
        }
      }
      it = next;
    }
    counters_.expired += ended;
  }
  Finish(std::move(after));
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

Exporter::Counters Exporter::counters() const {
  MutexLock lock(&mu_);
  Counters c = counters_;
  c.outstanding = exports_.size();
  const absl::Time now = options_.clock->Now();
  for (const auto& [id, e] : exports_) {
    const absl::Duration age = now - e->issued;
    c.oldest = std::max(c.oldest, age);
    ++c.by_age[age < absl::Seconds(1) ? 0 : age < absl::Seconds(10) ? 1 : age < absl::Seconds(60) ? 2 : 3];
  }
  return c;
}

}  // namespace baton::kvtransfer
