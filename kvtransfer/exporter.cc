#include "kvtransfer/exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/transfer_end.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {
namespace {

// A use comes back when the link broke, but not for ever.
constexpr int kMaxBroken = 3;
constexpr size_t kMaxConsumerBytes = 64;

absl::Status Expired() {
  return absl::AbortedError("the lease of the KV ended: its receiver was not heard of in time; prefill again");
}

}  // namespace

// One claim. Claims of one export are independent; each belongs to its transport's thread, except what says otherwise.
struct Exporter::Reader {
  std::shared_ptr<Export_> e;
  std::string consumer;
  uint32_t attempt = 0;
  size_t first_block = 0;
  absl::Time heard;                // guarded by Exporter::mu_
  absl::Status why;                // written before `stop`, once
  std::atomic<bool> stop{false};
  absl::Duration posting, waiting;
  absl::Time waiting_since = absl::InfiniteFuture();
  Mutex wake_mu;
  std::function<void()> wake ABSL_GUARDED_BY(wake_mu);

  void Stop(absl::Status reason) {
    if (stop.load(std::memory_order_relaxed)) return;
    why = std::move(reason);
    stop.store(true, std::memory_order_release);
  }
};

// `ticket` and `lease` do not change between a claim and its end, so a claim's holder reads them without the lock.
struct Exporter::Export_ {
  v1::Ticket ticket;
  kvcache::BlockLease lease;
  absl::Duration lease_duration;
  std::atomic<size_t> num_sealed{0};
  // Written before `closed`, once.
  bool finished = false;
  std::string payload;
  std::atomic<bool> closed{false};
  // Guarded by Exporter::mu_.
  absl::Time issued;
  absl::Time deadline;  // while nobody reads
  TransferState state = TransferState::kOffered;
  uint32_t uses_left = 1;
  int broken = 0;
  absl::Status end_reason;  // told to readers; OK: it was released
  bool delivered = false;
  std::function<void(absl::Status)> on_over;
  std::vector<std::shared_ptr<Reader>> readers;
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

void Exporter::Finish(After after) {
  after.freed.clear();
  for (const std::shared_ptr<Export_>& e : after.over) {
    if (!e->on_over) continue;
    const absl::Status why = e->end_reason.ok() ? absl::AbortedError("the ticket was given back") : e->end_reason;
    std::exchange(e->on_over, nullptr)(e->delivered ? absl::OkStatus() : why);
  }
  for (const std::shared_ptr<Reader>& reader : after.wake) {
    MutexLock lock(&reader->wake_mu);
    if (reader->wake) reader->wake();
  }
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
  const TransferId id = TransferId::Random();
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
  auto e = std::make_shared<Export_>();
  e->ticket = *ticket;
  e->lease = std::move(lease);
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
    Export_& e = *it->second;
    num_sealed = std::min(num_sealed, e.lease.blocks().size());
    if (num_sealed <= e.num_sealed.load(std::memory_order_relaxed)) return true;
    e.num_sealed.store(num_sealed, std::memory_order_release);
    Apply(it, TransferEvent::kProgress, &after);
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
    Export_& e = *it->second;
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
      return true;
    case TransferAction::kWake:
      after->wake.insert(after->wake.end(), e.readers.begin(), e.readers.end());
      return true;
    case TransferAction::kStopSend:
      if (event == TransferEvent::kExpire) e.end_reason = Expired();
      for (const std::shared_ptr<Reader>& reader : e.readers) {
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

absl::Status Exporter::Refuse(Refusal why, absl::StatusCode code, absl::string_view what) {
  MutexLock lock(&mu_);
  ++counters_.refusals[static_cast<int>(why)];
  return absl::Status(code, what);
}

absl::StatusOr<Claim> Exporter::ClaimTicket(const v1::FetchOpen& open) {
  const v1::Ticket& ticket = open.ticket();
  absl::Status shape = CheckTicketShape(ticket);
  if (shape.ok() && (open.first_block() > static_cast<uint32_t>(ticket.blocks_size()) ||
                     open.consumer().size() > kMaxConsumerBytes)) {
    shape = absl::InvalidArgumentError("the fetch begins past the ticket's last block, or its consumer is oversized");
  }
  if (!shape.ok()) return Refuse(Refusal::kMalformed, shape.code(), shape.message());
  if (absl::Status s = VerifyMac(options_.key, ticket); !s.ok()) return Refuse(Refusal::kForged, s.code(), s.message());
  constexpr absl::StatusCode kAborted = absl::StatusCode::kAborted;
  if (ticket.endpoint().incarnation() != options_.incarnation ||
      ticket.endpoint().worker_name() != options_.worker_name) {
    return Refuse(Refusal::kIncarnation, kAborted,
                  "the ticket is of another worker, or of this one before it restarted; prefill again");
  }
  After after;
  std::shared_ptr<Reader> reader;
  Refusal why = Refusal::kUnknown;
  absl::string_view what = "the ticket's KV is no longer held (fetched, released or expired); prefill again";
  {
    MutexLock lock(&mu_);
    reader = Admit(open, &why, &what, &after);
  }
  Finish(std::move(after));
  if (reader == nullptr) return Refuse(why, kAborted, what);
  return Claim(this, std::move(reader));
}

std::shared_ptr<Exporter::Reader> Exporter::Admit(const v1::FetchOpen& open, Refusal* why, absl::string_view* what,
                                                  After* after) {
  const auto it = exports_.find(TransferId::Of(open.ticket()));
  if (it == exports_.end()) return nullptr;
  const std::shared_ptr<Export_> e = it->second;
  if (e->ticket.epoch() != open.ticket().epoch() || e->ticket.mac() != open.ticket().mac()) {
    // Both MACs are genuine, so this is not an attack that a timing difference could help.
    *why = Refusal::kMismatch;
    *what = "the ticket differs from the one issued for this transfer; prefill again";
    return nullptr;
  }
  const absl::Time now = options_.clock->Now();
  if (e->state == TransferState::kOffered && now >= e->deadline) {
    if (Apply(it, TransferEvent::kExpire, after)) ++counters_.expired;
    *why = Refusal::kExpired;
    *what = "the ticket's lease has expired; prefill again";
    return nullptr;
  }
  if (!e->lease.Valid()) {
    e->end_reason = absl::AbortedError("a block changed hands; prefill again");
    Apply(it, TransferEvent::kRelease, after);
    *why = Refusal::kGeneration;
    *what = "a block of the ticket no longer holds what was exported; prefill again";
    return nullptr;
  }
  std::shared_ptr<Reader> earlier;  // attempt of the same receiver
  bool stale = false;
  for (const std::shared_ptr<Reader>& r : e->readers) {
    if (open.consumer().empty() || r->consumer != open.consumer() || r->stop) continue;
    stale = stale || r->attempt >= open.attempt();
    if (r->attempt < open.attempt()) earlier = r;
  }
  const bool may = !stale && (earlier != nullptr || e->uses_left > 0);
  if (!Apply(it, may ? TransferEvent::kClaim : TransferEvent::kClaimSpent, after)) {
    *why = Refusal::kConsumed;
    *what = "the ticket was already used; one ticket is good for one fetch";
    return nullptr;
  }
  if (earlier != nullptr) {
    earlier->Stop(absl::AbortedError("a later attempt of the same receiver replaced this one"));
    after->wake.push_back(earlier);
    ++counters_.replaced;
  } else {
    --e->uses_left;
  }
  auto reader = std::make_shared<Reader>();
  reader->e = e;
  reader->consumer = open.consumer();
  reader->attempt = open.attempt();
  reader->first_block = open.first_block();
  reader->heard = now;
  e->readers.push_back(reader);
  ++counters_.in_flight;
  return reader;
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
      Export_& e = *it->second;
      size_t silent = 0, alive = 0;
      for (const std::shared_ptr<Reader>& r : e.readers) {
        if (r->stop) continue;
        ++(now >= r->heard + e.lease_duration ? silent : alive);
      }
      const bool nobody_left = silent > 0 && alive == 0 && e.uses_left == 0;
      if (nobody_left || (e.readers.empty() && now >= e.deadline)) {
        ended += Apply(it, TransferEvent::kExpire, &after);
      } else if (silent > 0 && e.state == TransferState::kReading) {
        for (const std::shared_ptr<Reader>& r : e.readers) {
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

void Exporter::EndClaim(const std::shared_ptr<Reader>& reader, ClaimEnd how) {
  After after;
  {
    MutexLock lock(&mu_);
    --counters_.in_flight;
    auto it = exports_.find(TransferId::Of(reader->e->ticket));
    if (it == exports_.end()) {
      ++counters_.impossible;
      return;
    }
    Export_& e = *it->second;
    std::erase(e.readers, reader);
    counters_.posting_seconds += absl::ToDoubleSeconds(reader->posting);
    counters_.waiting_seconds += absl::ToDoubleSeconds(reader->waiting);
    const bool stopped = reader->stop.load(std::memory_order_acquire);
    if (how == ClaimEnd::kDelivered && !stopped && e.closed) {
      ++counters_.completed;
      e.delivered = true;
      counters_.finished += e.finished;
      if (!e.finished) {
        counters_.bytes_sent += (e.lease.blocks().size() - reader->first_block) * options_.layout.block_bytes();
      }
    } else {
      ++counters_.failed;
    }
    // A broken link is not the receiver's fault, and a replaced attempt has passed its use on.
    if (how == ClaimEnd::kBroken && !stopped && ++e.broken <= kMaxBroken) {
      ++e.uses_left;
      e.deadline = e.closed ? options_.clock->Now() + e.lease_duration : e.deadline;
    }
    const TransferEvent event = !e.readers.empty()  ? TransferEvent::kReaderGone
                                : e.uses_left > 0 ? TransferEvent::kLastReaderGone
                                                  : TransferEvent::kLastReaderSpent;
    Apply(it, event, &after);
  }
  Finish(std::move(after));
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

Claim::Claim(Exporter* exporter, std::shared_ptr<Exporter::Reader> reader)
    : exporter_(exporter), reader_(std::move(reader)), next_block_(reader_->first_block) {
  if (reader_->e->ticket.block_tags()) {
    tagger_ = std::make_shared<BlockTagger>(exporter_->options().key, reader_->e->ticket);
  }
}

Claim& Claim::operator=(Claim&& other) noexcept {
  if (this != &other) {
    Finish(ClaimEnd::kStopped);
    exporter_ = other.exporter_;
    reader_ = std::move(other.reader_);
    tagger_ = std::move(other.tagger_);
    next_block_ = other.next_block_;
  }
  return *this;
}

Claim::~Claim() { Finish(ClaimEnd::kStopped); }

TransferId Claim::id() const { return TransferId::Of(reader_->e->ticket); }
const v1::Ticket& Claim::ticket() const { return reader_->e->ticket; }
size_t Claim::num_blocks() const { return static_cast<size_t>(reader_->e->ticket.blocks_size()); }
size_t Claim::first_block() const { return reader_->first_block; }
std::span<const std::byte> Claim::bytes(size_t block_idx) const { return reader_->e->lease.bytes(block_idx); }
bool Claim::stop_requested() const { return reader_->stop.load(std::memory_order_acquire); }

void Claim::SetWake(std::function<void()> wake) {
  MutexLock lock(&reader_->wake_mu);
  reader_->wake = std::move(wake);
}

void Claim::NoteWaiting(bool waiting) const {
  Exporter::Reader& r = *reader_;
  const bool was = r.waiting_since != absl::InfiniteFuture();
  if (waiting == was) return;
  const absl::Time now = Clock::Real()->Now();
  if (was) r.waiting += now - r.waiting_since;
  r.waiting_since = waiting ? now : absl::InfiniteFuture();
}

bool Claim::Done() const {
  const Exporter::Export_& e = *reader_->e;
  return e.closed.load(std::memory_order_acquire) && (e.finished || next_block_ == num_blocks());
}

bool Claim::HasBlock() const {
  const bool done = Done();
  const bool has = !done && !stop_requested() && next_block_ < reader_->e->num_sealed.load(std::memory_order_acquire);
  NoteWaiting(!has && !done);
  return has;
}

v1::BlockSeal Claim::MakeSeal() {
  const absl::Time begin = Clock::Real()->Now();
  v1::BlockSeal seal;
  const std::span<const std::byte> data = bytes(next_block_);
  seal.set_block_idx(static_cast<uint32_t>(next_block_));
  seal.set_generation(ticket().blocks(static_cast<int>(next_block_)).generation());
  if (!exporter_->options_.unchecked_for_bench) seal.set_checksum(BlockChecksum(data));
  if (tagger_ != nullptr) seal.set_tag(tagger_->Tag(seal.block_idx(), seal.generation(), data));
  ++next_block_;
  reader_->posting += Clock::Real()->Now() - begin;
  return seal;
}

absl::Status Claim::CheckStillValid() const {
  if (stop_requested()) return reader_->why;
  if (!reader_->e->lease.Valid()) {
    return absl::AbortedError("a block changed hands while it was sent; the bytes must not be used, prefill again");
  }
  return absl::OkStatus();
}

v1::TransferEnd Claim::MakeEnd(absl::Status broken) const {
  if (broken.ok()) broken = CheckStillValid();
  if (broken.ok() && !Done()) broken = absl::AbortedError("the transfer was stopped");
  NoteWaiting(false);
  v1::TransferEnd end;
  end.set_code(static_cast<uint32_t>(broken.code()));
  end.set_message(std::string(broken.message().substr(0, 512)));
  end.set_num_blocks(static_cast<uint32_t>(next_block_ - reader_->first_block));
  if (broken.ok()) {
    end.set_finished(reader_->e->finished);
    end.set_payload(reader_->e->payload);
  }
  end.set_posting_us(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(reader_->posting))));
  end.set_waiting_us(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(reader_->waiting))));
  SealEnd(exporter_->options().key, ticket(), &end);
  return end;
}

void Claim::Renew() {
  const absl::Time now = exporter_->options_.clock->Now();
  MutexLock lock(&exporter_->mu_);
  reader_->heard = now;
}

void Claim::Finish(ClaimEnd how) {
  if (reader_ == nullptr) return;
  SetWake(nullptr);
  NoteWaiting(false);
  exporter_->EndClaim(reader_, how);
  reader_.reset();
}

}  // namespace baton::kvtransfer
