// What a receiving side checks, whatever carried the bytes: the ticket before, each block after, the end at last.
#ifndef BATON_KVTRANSFER_RECEIVER_H_
#define BATON_KVTRANSFER_RECEIVER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/block_check.h"
#include "kvtransfer/block_tag.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

// One fetch's receiving state. The transport keeps it from Fetch() to the callback and past that while bytes can still
// arrive. Movable; one thread at a time.
class Reception {
 public:
  // Parts that are `options`, `transport` and clock stay the caller's and outlive it.
  // to_device: the transport can write the memory of the destination's device, and does so if to_device() says it.
  Reception(const ReceiverOptions* options, absl::string_view transport, FetchRequest request, bool to_device = false);

  // What must hold before anything is sent: CheckTicketForFetch, an endpoint for this transport, tags if required, room
  // for each block that is missing. Nothing else may be called before it said OK.
  absl::Status Check() const;
  // `retry` (below 256) counts attempts that the transport makes by itself: those of a connection, say.
  v1::FetchOpen Open(uint32_t retry = 0) const;
  const v1::Ticket& ticket() const { return request_.ticket; }
  const v1::Endpoint& endpoint() const { return *EndpointFor(request_.ticket, transport_); }
  absl::Time deadline() const { return request_.deadline; }
  kvcache::BlockLease& destination() { return request_.destination; }

  // Before any byte of a block is taken: where its bytes go. Empty: a block that came before; drop it. DATA_LOSS for one
  // that was not asked for or a wrong length, ABORTED for another generation than the ticket's.
  absl::StatusOr<std::span<std::byte>> Place(const v1::BlockSeal& seal, size_t length);
  // After its last byte: DATA_LOSS for a wrong checksum, PERMISSION_DENIED for a wrong tag.
  absl::Status Arrived(size_t block_idx);
  // The same for one piece (PieceBytes) of a block, in any order; the seal's checksum and tag count in the last one.
  absl::StatusOr<std::span<std::byte>> PlacePiece(const v1::BlockSeal& seal, uint64_t offset, size_t length);
  absl::Status PieceArrived(size_t block_idx, uint64_t offset);
  // Whether places are in the memory of the destination's device. Then PieceLanded in place of PieceArrived, for pieces that
  // are there: true for a block's last one, whose checksum (BlockChecksum) is then the transport's to make; and TakeChecksum
  // with it, whose errors are Arrived's.
  bool to_device() const { return to_device_; }
  bool PieceLanded(size_t block_idx, uint64_t offset);
  absl::Status TakeChecksum(size_t block_idx, uint64_t checksum);
  std::span<std::byte> place(size_t block_idx) const;  // of the whole block
  // The sender's last message: its error, or OK when it says that all is valid. DATA_LOSS, PERMISSION_DENIED: the message
  // itself is not.
  absl::Status TakeEnd(const v1::TransferEnd& end);
  // The end is there and, unless it says `finished`, every block is verified. Blocks can still be arriving then.
  bool complete() const;
  // Once complete. `detail` is the transport's.
  FetchResult Result(std::string detail) const;

 private:
  struct Block {
    uint64_t placed = 0, landed = 0;  // bit for each piece
    size_t checked = 0;               // pieces, from the first
    bool verified = false;
    v1::BlockSeal seal;               // of the last piece
    std::optional<BlockCheck> check;  // once begun
  };
  size_t num_asked() const { return blocks_.size(); }
  size_t piece_bytes() const { return PieceBytes(options_->layout.block_bytes()); }
  uint64_t all_pieces() const;
  // Of the block that `seal` names, as Place.
  absl::StatusOr<Block*> Find(const v1::BlockSeal& seal);
  // Looks at the pieces that have landed in order.
  absl::Status CheckLanded(size_t block_idx);
  absl::Status CheckChecksum(size_t block_idx, uint64_t checksum) const;

  const ReceiverOptions* options_;
  absl::string_view transport_;
  FetchRequest request_;
  bool to_device_ = false;
  absl::Time started_;
  std::unique_ptr<BlockTagger> tagger_;  // null: no tags
  std::vector<Block> blocks_;            // [ticket block - first_block]
  size_t num_verified_ = 0;
  std::optional<v1::TransferEnd> end_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_RECEIVER_H_
