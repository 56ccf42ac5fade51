// Tickets: what makes KV reachable from another process, and every check that one goes through.
//
// A ticket is a value (baton::v1::Ticket). It is signed by HMAC-SHA-256 under the cluster key over an encoding of our
// own (each field with its length, in one fixed order), because protobuf's bytes are not canonical. All functions here
// are pure except the two that draw random ids; all are thread-safe.
#ifndef BATON_KVTRANSFER_TICKET_H_
#define BATON_KVTRANSFER_TICKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/kv_view.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// Bounds on what a ticket may say, checked before any of it is used.
inline constexpr size_t kMaxTicketBytes = 1 << 20;      // serialized
inline constexpr int kMaxTicketBlocks = 32768;          // 512K tokens at 16 a block
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr uint64_t kMaxLeaseMs = 600'000;
inline constexpr int kMaxFallbacks = 4;
inline constexpr uint32_t kMaxConsumers = 64;

// The secret that all workers of a cluster share. Never printed.
class ClusterKey {
 public:
  static constexpr size_t kMinBytes = 32;

  // INVALID_ARGUMENT when shorter than kMinBytes.
  static absl::StatusOr<ClusterKey> FromBytes(absl::string_view bytes);
  // The whole file is the key. NOT_FOUND, or INVALID_ARGUMENT when shorter than kMinBytes or larger than 4 KiB.
  static absl::StatusOr<ClusterKey> FromFile(const std::string& path);
  // Random; for one-process use and tests.
  static ClusterKey Random();

  const std::string& bytes() const { return bytes_; }

 private:
  explicit ClusterKey(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

// 128 random bits that name one export.
struct TransferId {
  uint64_t high = 0;
  uint64_t low = 0;

  static TransferId Random();
  static TransferId Of(const v1::Ticket& ticket) { return {ticket.transfer_id_high(), ticket.transfer_id_low()}; }
  auto operator<=>(const TransferId&) const = default;
  std::string ToString() const;  // 32 hex digits
};

// Hex of 128 random bits: a worker's incarnation.
std::string RandomIncarnation();

// XXH3-64 of one block's bytes.
uint64_t BlockChecksum(std::span<const std::byte> bytes);

v1::KvLayout LayoutToProto(const kernels::KvLayout& layout);
// INVALID_ARGUMENT when a field is zero, beyond its bound, or the version is unknown; sizes computed from the result
// cannot overflow.
absl::StatusOr<kernels::KvLayout> LayoutFromProto(const v1::KvLayout& layout);

// OK, or FAILED_PRECONDITION that names the first field that differs and both values, such as
// "kv block_size: prefill 16, decode 32".
absl::Status CompareLayouts(const v1::KvLayout& prefill, const v1::KvLayout& decode);
absl::Status CompareFingerprints(const v1::ModelFingerprint& prefill, const v1::ModelFingerprint& decode);

// The bytes that the MAC covers: every field but the MAC. Exposed for tests.
std::string CanonicalEncoding(const v1::Ticket& ticket);
// Sets ticket->mac.
void SignTicket(const ClusterKey& key, v1::Ticket* ticket);
// PERMISSION_DENIED unless the MAC is right. Takes the same time wherever the difference is.
absl::Status VerifyMac(const ClusterKey& key, const v1::Ticket& ticket);

// INVALID_ARGUMENT unless every field is in bounds and the parts agree with each other (as many blocks as num_tokens
// need). Says nothing about authenticity.
absl::Status CheckTicketShape(const v1::Ticket& ticket);

// Where the ticket's worker can be reached by `transport`; null: not at all.
const v1::Endpoint* EndpointFor(const v1::Ticket& ticket, absl::string_view transport);

// How long the exporter holds blocks for a receiver it does not hear of.
inline absl::Duration Lease(const v1::Ticket& ticket) {
  return absl::Milliseconds(static_cast<int64_t>(ticket.lease_ms()));
}
// While a transfer runs, each side lets the other hear of it at least this often,
absl::Duration HeartbeatInterval(const v1::Ticket& ticket);
// and gives the other up after this long without a word.
absl::Duration SilenceLimit(const v1::Ticket& ticket);

// All that a receiver checks before it asks for bytes: shape, MAC, layout and fingerprint, in that order.
absl::Status CheckTicketForFetch(const ClusterKey& key, const v1::Ticket& ticket, const kernels::KvLayout& layout,
                                 const v1::ModelFingerprint& fingerprint);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TICKET_H_
