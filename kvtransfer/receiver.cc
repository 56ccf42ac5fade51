#include "kvtransfer/receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/transfer_end.h"

namespace baton::kvtransfer {

Reception::Reception(const ReceiverOptions* options, absl::string_view transport, FetchRequest request)
    : options_(options), transport_(transport), request_(std::move(request)), started_(absl::Now()) {
  const size_t total = static_cast<size_t>(request_.ticket.blocks_size());
  const size_t asked = total - std::min<size_t>(total, request_.first_block);
  blocks_.assign(asked, Block::kMissing);
  seals_.resize(asked);
}

absl::Status Reception::Check() const {
  const v1::Ticket& ticket = request_.ticket;
  absl::Status s = CheckTicketForFetch(options_->key, ticket, options_->layout, options_->fingerprint);
  if (!s.ok()) return s;
  if (EndpointFor(ticket, transport_) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the exporting worker hands over by ", ticket.endpoint().transport(), ", this worker by ",
                     transport_, "; start both with the same kv_transport"));
  }
  if (options_->require_tags && !ticket.block_tags()) {
    return absl::FailedPreconditionError(
        "the ticket's blocks carry no keyed tags, which this worker wants; set kv_block_tags on all workers");
  }
  const size_t total = static_cast<size_t>(ticket.blocks_size());
  if (request_.first_block > total) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fetch begins at block ", request_.first_block, ", the ticket names ", total));
  }
  const size_t have = request_.destination.blocks().size();
  if (have < num_asked()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fetch asks for ", num_asked(), " blocks, only ", have, " were reserved for them"));
  }
  if (have > 0 && request_.destination.bytes(0).size() != options_->layout.block_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the reserved blocks have ", request_.destination.bytes(0).size(),
                                                   " bytes, the layout says ", options_->layout.block_bytes()));
  }
  return absl::OkStatus();
}

v1::FetchOpen Reception::Open(uint32_t retry) const {
  v1::FetchOpen open;
  *open.mutable_ticket() = request_.ticket;
  open.set_first_block(request_.first_block);
  open.set_consumer(options_->consumer);
  open.set_attempt(request_.attempt * 256 + retry);
  return open;
}

absl::StatusOr<std::span<std::byte>> Reception::Place(const v1::BlockSeal& seal, size_t length) {
  const uint64_t total = static_cast<uint64_t>(request_.ticket.blocks_size());
  if (seal.block_idx() >= total || seal.block_idx() < request_.first_block) {
    return absl::DataLossError(absl::StrCat("block ", seal.block_idx(), " arrived, but [", request_.first_block, ", ",
                                            total, ") was asked for"));
  }
  if (length != options_->layout.block_bytes()) {
    return absl::DataLossError(absl::StrCat("block ", seal.block_idx(), " arrived with ", length, " bytes instead of ",
                                            options_->layout.block_bytes()));
  }
  const v1::BlockSlot& slot = request_.ticket.blocks(static_cast<int>(seal.block_idx()));
  if (seal.generation() != slot.generation()) {
    return absl::AbortedError(absl::StrCat("block ", seal.block_idx(), " is of generation ", seal.generation(),
                                           ", the ticket names ", slot.generation(), "; prefill again"));
  }
  const size_t i = seal.block_idx() - request_.first_block;
  if (blocks_[i] != Block::kMissing) return std::span<std::byte>();
  blocks_[i] = Block::kArriving;
  seals_[i] = seal;
  return request_.destination.bytes(i);
}

absl::Status Reception::Arrived(size_t block_idx) {
  const size_t i = block_idx - request_.first_block;
  const std::span<const std::byte> bytes = request_.destination.bytes(i);
  const v1::BlockSeal& seal = seals_[i];
  if (!options_->unchecked_for_bench && BlockChecksum(bytes) != seal.checksum()) {
    return absl::DataLossError(
        absl::StrCat("block ", block_idx, " arrived with a wrong checksum; its bytes are discarded, prefill again"));
  }
  if (request_.ticket.block_tags()) {
    if (tagger_ == nullptr) tagger_ = std::make_unique<BlockTagger>(options_->key, request_.ticket);
    if (!TagsEqual(tagger_->Tag(seal.block_idx(), seal.generation(), bytes), seal.tag())) {
      return absl::PermissionDeniedError(
          absl::StrCat("block ", block_idx, " arrived with a wrong tag: it was altered on the way; prefill again"));
    }
  }
  blocks_[i] = Block::kVerified;
  ++num_verified_;
  return absl::OkStatus();
}

absl::Status Reception::TakeEnd(const v1::TransferEnd& end) {
  if (end.code() != 0) {
    // Refusals come from who may not know the ticket, so they are neither summed nor tagged; they can only end a fetch.
    const bool known = end.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
    return absl::Status(known ? static_cast<absl::StatusCode>(end.code()) : absl::StatusCode::kUnknown,
                        absl::StrCat("worker ", request_.ticket.endpoint().worker_name(), ": ", end.message()));
  }
  if (absl::Status s = CheckEnd(options_->key, request_.ticket, end); !s.ok()) return s;
  if (end.num_blocks() > num_asked() || (!end.finished() && end.num_blocks() != num_asked())) {
    return absl::DataLossError(absl::StrCat("the transfer ended with ", end.num_blocks(), " blocks instead of ",
                                            num_asked(), "; prefill again"));
  }
  end_ = end;
  return absl::OkStatus();
}

bool Reception::complete() const {
  return end_.has_value() && (end_->finished() || num_verified_ == num_asked());
}

FetchResult Reception::Result(std::string detail) const {
  FetchResult result;
  result.finished = end_->finished();
  result.payload = end_->payload();
  FetchStats& stats = result.stats;
  stats.blocks = static_cast<uint32_t>(num_verified_);
  stats.bytes = num_verified_ * options_->layout.block_bytes();
  stats.duration = absl::Now() - started_;
  // Another process's word about time: no more than there was.
  const auto bounded = [&](uint64_t us) { return std::min(absl::Microseconds(static_cast<double>(us)), stats.duration); };
  stats.posting = bounded(end_->posting_us());
  stats.waiting = bounded(end_->waiting_us());
  stats.transport = std::string(transport_);
  stats.detail = std::move(detail);
  return result;
}

}  // namespace baton::kvtransfer
