#include "kvtransfer/claim.h"

#include <algorithm>
#include <utility>

#include "kvtransfer/export_record.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/transfer_end.h"

namespace baton::kvtransfer {
namespace {

// A use comes back when the link broke, but not for ever.
constexpr int kMaxBroken = 3;
constexpr size_t kMaxConsumerBytes = 64;

}  // namespace

absl::string_view Name(Refusal refusal) {
  constexpr const char* kNames[kNumRefusals] = {"malformed", "forged",  "incarnation", "unknown",
                                                "consumed",  "expired", "mismatch",    "generation"};
  return kNames[static_cast<int>(refusal)];
}

// How claims begin and end, in the exporter's book.

absl::Status Exporter::Refuse(Refusal why, absl::StatusCode code, absl::string_view what) {
  MutexLock lock(&mu_);
  ++counters_.refusals[static_cast<int>(why)];
  return absl::Status(code, what);
}

absl::StatusOr<Claim> Exporter::ClaimTicket(const v1::FetchOpen& open, bool from_device) {
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
  std::shared_ptr<ExportReader> reader;
  Refusal why = Refusal::kUnknown;
  absl::string_view what = "the ticket's KV is no longer held (fetched, released or expired); prefill again";
  {
    MutexLock lock(&mu_);
    reader = Admit(open, from_device, &why, &what, &after);
  }
  Finish(std::move(after));
  if (reader == nullptr) return Refuse(why, kAborted, what);
  return Claim(this, std::move(reader));
}

std::shared_ptr<ExportReader> Exporter::Admit(const v1::FetchOpen& open, bool from_device, Refusal* why,
                                              absl::string_view* what, After* after) {
  const auto it = exports_.find(TransferId::Of(open.ticket()));
  if (it == exports_.end()) return nullptr;
  const std::shared_ptr<ExportRecord> e = it->second;
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
  std::shared_ptr<ExportReader> earlier;  // attempt of the same receiver
  bool stale = false;
  for (const std::shared_ptr<ExportReader>& r : e->readers) {
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
  auto reader = std::make_shared<ExportReader>();
  reader->e = e;
  reader->consumer = open.consumer();
  reader->attempt = open.attempt();
  reader->first_block = open.first_block();
  reader->from_device = from_device && e->on_device && !e->ticket.block_tags();
  reader->heard = now;
  e->readers.push_back(reader);
  AskForHostCopies(it, after);
  ++counters_.in_flight;
  return reader;
}

void Exporter::EndClaim(const std::shared_ptr<ExportReader>& reader, ClaimEnd how) {
  After after;
  {
    MutexLock lock(&mu_);
    --counters_.in_flight;
    auto it = exports_.find(TransferId::Of(reader->e->ticket));
    if (it == exports_.end()) {
      ++counters_.impossible;
      return;
    }
    ExportRecord& e = *it->second;
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

Claim::Claim(Exporter* exporter, std::shared_ptr<ExportReader> reader)
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
    next_offset_ = other.next_offset_;
    check_.reset();
    if (other.check_.has_value()) check_.emplace(*std::move(other.check_));
  }
  return *this;
}

Claim::~Claim() { Finish(ClaimEnd::kStopped); }

TransferId Claim::id() const { return TransferId::Of(reader_->e->ticket); }
const v1::Ticket& Claim::ticket() const { return reader_->e->ticket; }
size_t Claim::num_blocks() const { return static_cast<size_t>(reader_->e->ticket.blocks_size()); }
size_t Claim::first_block() const { return reader_->first_block; }
std::span<const std::byte> Claim::bytes(size_t block_idx) const {
  const kvcache::BlockLease& lease = reader_->e->lease;
  if (!from_device()) return lease.bytes(block_idx);
  return {lease.device_bytes(block_idx), exporter_->options().layout.block_bytes()};
}
bool Claim::from_device() const { return reader_->from_device; }
bool Claim::stop_requested() const { return reader_->stop.load(std::memory_order_acquire); }

void Claim::SetWake(std::function<void()> wake) {
  MutexLock lock(&reader_->wake_mu);
  reader_->wake = std::move(wake);
}

void Claim::NoteWaiting(bool waiting) const {
  ExportReader& r = *reader_;
  const bool was = r.waiting_since != absl::InfiniteFuture();
  if (waiting == was) return;
  const absl::Time now = Clock::Real()->Now();
  if (was) r.waiting += now - r.waiting_since;
  r.waiting_since = waiting ? now : absl::InfiniteFuture();
}

bool Claim::Done() const {
  const ExportRecord& e = *reader_->e;
  return e.closed.load(std::memory_order_acquire) && (e.finished || next_block_ == num_blocks());
}

bool Claim::HasBlock() const {
  const bool done = Done();
  const ExportRecord& e = *reader_->e;
  const std::atomic<size_t>& readable = e.on_device && !from_device() ? e.num_on_host : e.num_sealed;
  const bool has = !done && !stop_requested() && next_block_ < readable.load(std::memory_order_acquire);
  NoteWaiting(!has && !done);
  return has;
}

BlockPiece Claim::NextPiece() {
  const absl::Time begin = Clock::Real()->Now();
  const std::span<const std::byte> block = bytes(next_block_);
  BlockPiece piece;
  piece.seal.set_block_idx(static_cast<uint32_t>(next_block_));
  piece.seal.set_generation(ticket().blocks(static_cast<int>(next_block_)).generation());
  piece.offset = next_offset_;
  piece.bytes = block.subspan(next_offset_, std::min(PieceBytes(block.size()), block.size() - next_offset_));
  if (!check_.has_value() && !from_device()) {
    check_.emplace(!exporter_->options_.unchecked_for_bench, tagger_.get(), piece.seal.block_idx(),
                   piece.seal.generation());
  }
  if (check_.has_value()) check_->Add(piece.bytes);
  next_offset_ += piece.bytes.size();
  if (next_offset_ == block.size()) {
    if (check_.has_value()) {
      piece.seal.set_checksum(check_->checksum());
      piece.seal.set_tag(check_->TakeTag());
    }
    check_.reset();
    next_offset_ = 0;
    ++next_block_;
  }
  reader_->posting += Clock::Real()->Now() - begin;
  return piece;
}

void Claim::AddPosting(absl::Duration time) { reader_->posting += time; }

v1::BlockSeal Claim::MakeSeal() {
  const size_t block_idx = next_block_;
  BlockPiece piece;
  while (next_block_ == block_idx) piece = NextPiece();
  return std::move(piece.seal);
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
