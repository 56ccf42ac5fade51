// A receiver's claim on an export: what its transport sends, in which order, and when to stop.
#ifndef BATON_KVTRANSFER_CLAIM_H_
#define BATON_KVTRANSFER_CLAIM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/block_check.h"
#include "kvtransfer/block_tag.h"
#include "kvtransfer/ticket.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// A part of a block on its way.
struct BlockPiece {
  v1::BlockSeal seal;  // checksum and tag come with the block's last piece
  uint64_t offset = 0;
  std::span<const std::byte> bytes;  // of the claim's memory
};

class Exporter;
struct ExportRecord;
struct ExportReader;

// How a claim ended.
enum class ClaimEnd : uint8_t {
  kDelivered,  // everything was sent and the export was still valid after the last byte
  kStopped,    // the receiver wants no more, or the export ended
  kBroken,     // the transport failed: the use is given back, so that the receiver may try again
};

// The right to read one export's bytes, held by a transport while it sends. Move-only; its end (Finish or destruction)
// tells the exporter that nothing reads the bytes any more.
//
// A sender's loop: while HasBlock() send NextPiece(), or block next_block() whole with MakeSeal(); when Done(), send
// MakeEnd() and Finish; when neither, wait to be woken. Used by one thread at a time, but for the wake function.
class Claim {
 public:
  Claim() = default;
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&& other) noexcept;
  ~Claim();

  explicit operator bool() const { return reader_ != nullptr; }
  TransferId id() const;
  const v1::Ticket& ticket() const;
  size_t num_blocks() const;   // of the ticket
  size_t first_block() const;  // that the receiver wants
  // Called whenever a block was sealed, the export closed, or a stop requested; on any thread, with no lock of ours that
  // it could meet, never after Finish. It must only tell the transport's thread.
  void SetWake(std::function<void()> wake);

  // Whether bytes are in the memory of the pool's device: the host cannot touch them, and the transport makes the checksums
  // (the seals have none). There are no tags then.
  bool from_device() const;
  // A block, or what is left of one, may be sent now: next_block() is sealed and nobody asked to stop.
  bool HasBlock() const;
  size_t next_block() const { return next_block_; }
  std::span<const std::byte> bytes(size_t block_idx) const;
  // Of next_block(), PieceBytes() or what is left of it, checked now; moves on.
  BlockPiece NextPiece();
  // What the transport spent on checksums itself.
  void AddPosting(absl::Duration time);
  // The same for all that is left of next_block(): its seal.
  v1::BlockSeal MakeSeal();
  // Everything was handed out and nothing more will come.
  bool Done() const;
  // The export was released or expired, the receiver fell silent or began another attempt: send the end and finish.
  bool stop_requested() const;
  // Not OK when the export ended, or a block changed hands, while it was read: the receiver must discard.
  absl::Status CheckStillValid() const;
  // The last message, after the last byte has left: `broken` if not OK, else CheckStillValid().
  v1::TransferEnd MakeEnd(absl::Status broken = absl::OkStatus()) const;
  // The receiver was heard of.
  void Renew();
  // Ends the claim.
  void Finish(ClaimEnd how);

 private:
  friend class Exporter;
  Claim(Exporter* exporter, std::shared_ptr<ExportReader> reader);
  void NoteWaiting(bool waiting) const;

  Exporter* exporter_ = nullptr;
  std::shared_ptr<ExportReader> reader_;
  std::shared_ptr<BlockTagger> tagger_;
  size_t next_block_ = 0;
  size_t next_offset_ = 0;  // in it
  std::optional<BlockCheck> check_;  // of it, once begun
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_CLAIM_H_
