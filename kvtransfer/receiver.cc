#include "kvtransfer/receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/transfer_end.h"

namespace baton::kvtransfer {

Reception::Reception(const ReceiverOptions* options, absl::string_view transport, FetchRequest request, bool to_device)
    : options_(options), transport_(transport), request_(std::move(request)), started_(absl::Now()) {
  kvcache::BlockLease& destination = request_.destination;
  to_device_ = to_device && !request_.ticket.block_tags() && !destination.empty() && destination.pool()->device() != nullptr;
  for (size_t i = 0; i < destination.blocks().size(); ++i) destination.SetOnDevice(i, false);
  const size_t total = static_cast<size_t>(request_.ticket.blocks_size());
  const size_t asked = total - std::min<size_t>(total, request_.first_block);
  blocks_.resize(asked);
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

uint64_t Reception::all_pieces() const {
  const size_t count = (options_->layout.block_bytes() + piece_bytes() - 1) / piece_bytes();
  return ~uint64_t{0} >> (kMaxPieces - count);
}

absl::StatusOr<Reception::Block*> Reception::Find(const v1::BlockSeal& seal) {
  const uint64_t total = static_cast<uint64_t>(request_.ticket.blocks_size());
  if (seal.block_idx() >= total || seal.block_idx() < request_.first_block) {
    return absl::DataLossError(absl::StrCat("block ", seal.block_idx(), " arrived, but [", request_.first_block, ", ",
                                            total, ") was asked for"));
  }
  const v1::BlockSlot& slot = request_.ticket.blocks(static_cast<int>(seal.block_idx()));
  if (seal.generation() != slot.generation()) {
    return absl::AbortedError(absl::StrCat("block ", seal.block_idx(), " is of generation ", seal.generation(),
                                           ", the ticket names ", slot.generation(), "; prefill again"));
  }
  return &blocks_[seal.block_idx() - request_.first_block];
}

absl::StatusOr<std::span<std::byte>> Reception::Place(const v1::BlockSeal& seal, size_t length) {
  absl::StatusOr<Block*> block = Find(seal);
  if (!block.ok()) return block.status();
  if (length != options_->layout.block_bytes()) {
    return absl::DataLossError(absl::StrCat("block ", seal.block_idx(), " arrived with ", length, " bytes instead of ",
                                            options_->layout.block_bytes()));
  }
  if ((*block)->placed != 0) return std::span<std::byte>();
  (*block)->placed = all_pieces();
  (*block)->seal = seal;
  return place(seal.block_idx());
}

std::span<std::byte> Reception::place(size_t block_idx) const {
  const size_t i = block_idx - request_.first_block;
  if (!to_device_) return request_.destination.bytes(i);
  return {request_.destination.device_bytes(i), options_->layout.block_bytes()};
}

absl::StatusOr<std::span<std::byte>> Reception::PlacePiece(const v1::BlockSeal& seal, uint64_t offset, size_t length) {
  absl::StatusOr<Block*> block = Find(seal);
  if (!block.ok()) return block.status();
  const size_t total = options_->layout.block_bytes();
  const size_t piece = piece_bytes();
  if (offset >= total || offset % piece != 0 || length != std::min<uint64_t>(piece, total - offset)) {
    return absl::DataLossError(absl::StrCat("block ", seal.block_idx(), " of ", total, " bytes arrived with ", length,
                                            " bytes at ", offset, "; pieces have ", piece));
  }
  const uint64_t bit = uint64_t{1} << (offset / piece);
  if (((*block)->placed & bit) != 0) return std::span<std::byte>();
  (*block)->placed |= bit;
  if (offset + length == total) (*block)->seal = seal;
  return place(seal.block_idx()).subspan(offset, length);
}

absl::Status Reception::Arrived(size_t block_idx) {
  blocks_[block_idx - request_.first_block].landed = all_pieces();
  return CheckLanded(block_idx);
}

absl::Status Reception::PieceArrived(size_t block_idx, uint64_t offset) {
  blocks_[block_idx - request_.first_block].landed |= uint64_t{1} << (offset / piece_bytes());
  return CheckLanded(block_idx);
}

bool Reception::PieceLanded(size_t block_idx, uint64_t offset) {
  Block& block = blocks_[block_idx - request_.first_block];
  block.landed |= uint64_t{1} << (offset / piece_bytes());
  return block.landed == all_pieces() && !block.verified;
}

absl::Status Reception::CheckChecksum(size_t block_idx, uint64_t checksum) const {
  if (options_->unchecked_for_bench || checksum == blocks_[block_idx - request_.first_block].seal.checksum()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("block ", block_idx, " arrived with a wrong checksum; its bytes are discarded, prefill again"));
}

absl::Status Reception::TakeChecksum(size_t block_idx, uint64_t checksum) {
  if (absl::Status s = CheckChecksum(block_idx, checksum); !s.ok()) return s;
  blocks_[block_idx - request_.first_block].verified = true;
  request_.destination.SetOnDevice(block_idx - request_.first_block, true);
  ++num_verified_;
  return absl::OkStatus();
}

absl::Status Reception::CheckLanded(size_t block_idx) {
  Block& block = blocks_[block_idx - request_.first_block];
  const std::span<const std::byte> bytes = request_.destination.bytes(block_idx - request_.first_block);
  const size_t piece = piece_bytes();
  if (!block.check.has_value()) {
    if (request_.ticket.block_tags() && tagger_ == nullptr) {
      tagger_ = std::make_unique<BlockTagger>(options_->key, request_.ticket);
    }
    block.check.emplace(!options_->unchecked_for_bench, tagger_.get(), static_cast<uint32_t>(block_idx),
                        request_.ticket.blocks(static_cast<int>(block_idx)).generation());
  }
  for (; block.checked * piece < bytes.size() && (block.landed >> block.checked & 1) != 0; ++block.checked) {
    const size_t offset = block.checked * piece;
    block.check->Add(bytes.subspan(offset, std::min(piece, bytes.size() - offset)));
  }
  if (block.checked * piece < bytes.size()) return absl::OkStatus();
  if (absl::Status s = CheckChecksum(block_idx, block.check->checksum()); !s.ok()) return s;
  if (request_.ticket.block_tags() && !TagsEqual(block.check->TakeTag(), block.seal.tag())) {
    return absl::PermissionDeniedError(
        absl::StrCat("block ", block_idx, " arrived with a wrong tag: it was altered on the way; prefill again"));
  }
  block.check.reset();
  block.verified = true;
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
