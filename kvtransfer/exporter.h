// The sending side's book of exports: who may read which blocks, once, and until when.
//
// Ownership: an export owns its BlockLease from Export() until it is fetched, released or expired. While a Claim exists
// a transport may be reading the bytes, so release and expiry then only mark the export; the blocks are freed when the
// Claim ends (two-phase).
#ifndef BATON_KVTRANSFER_EXPORTER_H_
#define BATON_KVTRANSFER_EXPORTER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "kernels/kv_view.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/transfer_state.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

// Why a claim was refused; the label of a counter.
enum class Refusal : uint8_t {
  kMalformed,    // fields out of bounds
  kForged,       // the MAC is wrong
  kIncarnation,  // issued by another worker, or by this one before a restart
  kUnknown,      // never issued, or already fetched, released or expired
  kConsumed,     // being fetched right now
  kExpired,      // its time passed, the reaper had not come yet
  kMismatch,     // same transfer id, other contents
  kGeneration,   // a block no longer holds what was exported
};
inline constexpr int kNumRefusals = 8;
absl::string_view Name(Refusal refusal);

class Claim;

// Thread-safe. Outlived by the pool its leases come from; outlives every Claim.
class Exporter {
 public:
  struct Options {
    std::string worker_name;
    std::string incarnation;  // RandomIncarnation(), one for each process start
    ClusterKey key;
    kernels::KvLayout layout;
    v1::ModelFingerprint fingerprint;
    Clock* clock = Clock::Real();
    size_t max_outstanding = 4096;
    // How often a thread of the exporter's own calls ReapExpired; zero: no thread, the owner calls it.
    absl::Duration reap_interval = absl::ZeroDuration();
  };

  struct Counters {
    uint64_t exported = 0;
    uint64_t completed = 0;  // fetched whole
    uint64_t failed = 0;     // claimed, but the transport stopped early
    uint64_t released = 0;
    uint64_t expired = 0;
    uint64_t superseded = 0;  // by a newer epoch of the same request
    uint64_t impossible = 0;  // events the state table calls impossible; always 0
    uint64_t bytes_sent = 0;  // of completed transfers
    uint64_t refusals[kNumRefusals] = {};
    size_t outstanding = 0;  // exports not yet over, those being read included
    size_t in_flight = 0;    // of those, being read
  };

  explicit Exporter(Options options);
  // Frees what nobody reads. All Claims must have ended: stop the transport server first.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Where tickets say the blocks can be fetched. Set by the transport server when it starts.
  void SetEndpoint(v1::Endpoint endpoint);

  // Checksums the blocks (they must no longer change), keeps the lease and gives the signed ticket. An outstanding export
  // of the same request with a lower epoch is released.
  // FAILED_PRECONDITION: no endpoint yet. INVALID_ARGUMENT: request_id, num_tokens or duration out of bounds, or the
  // lease does not hold exactly the blocks that num_tokens need. ABORTED: a higher epoch of the request is outstanding.
  // RESOURCE_EXHAUSTED: max_outstanding. On error the lease is freed.
  absl::StatusOr<v1::Ticket> Export(absl::string_view request_id, uint32_t epoch, kvcache::BlockLease lease,
                                    uint32_t num_tokens, absl::Duration lease_duration);

  // Single use: of many calls with one ticket exactly one succeeds.
  // INVALID_ARGUMENT malformed, PERMISSION_DENIED forged, ABORTED everything else (unknown, consumed, expired, other
  // incarnation, stale blocks); each is counted.
  absl::StatusOr<Claim> ClaimTicket(const v1::Ticket& ticket);

  // Idempotent. True when it was held and is now free or will be once its reader stops.
  bool Release(TransferId id);
  // The same for what is exported for `request_id` at `epoch` or before: its ticket may have been lost on the way.
  bool ReleaseRequest(absl::string_view request_id, uint32_t epoch);
  // Ends what is due at `now`; returns how many.
  size_t ReapExpired(absl::Time now);
  // Releases every export; drain's last step. Returns how many.
  size_t ReleaseAll();

  Counters counters() const;
  const Options& options() const { return options_; }

 private:
  friend class Claim;
  struct Export_;  // one export
  using Exports = std::map<TransferId, std::shared_ptr<Export_>>;

  absl::Status Refuse(Refusal why, absl::StatusCode code, absl::string_view what);
  // Applies `event`; moves a lease to be freed out to the caller, who drops it without the lock.
  bool Apply(Exports::iterator it, TransferEvent event, kvcache::BlockLease* freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Supersede(absl::string_view request_id, uint32_t epoch, kvcache::BlockLease* freed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndClaim(const std::shared_ptr<Export_>& e, bool all_sent);
  void ReapLoop();

  const Options options_;
  mutable Mutex mu_;
  CondVar stop_cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  v1::Endpoint endpoint_ ABSL_GUARDED_BY(mu_);
  Exports exports_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, TransferId> by_request_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
  std::thread reaper_;
};

// The right to read one export's bytes, held by a transport while it sends. Move-only; its end (Finish or destruction)
// tells the exporter that nothing reads the bytes any more. Used by one thread at a time.
//
// Blocks are taken one by one so that a later exporter can hand them out as prefill seals them.
class Claim {
 public:
  Claim() = default;
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&& other) noexcept;
  ~Claim();

  explicit operator bool() const { return export_ != nullptr; }
  TransferId id() const;
  size_t num_blocks() const;
  std::span<const std::byte> bytes(size_t block_idx) const;
  const v1::BlockSlot& slot(size_t block_idx) const;
  // True once the export was released or expired: stop sending, then end the claim.
  bool stop_requested() const;
  // ABORTED when the export ended, or a block changed hands, while it was read: the receiver must discard.
  absl::Status CheckStillValid() const;
  // Ends the claim. all_sent: every byte left.
  void Finish(bool all_sent);

 private:
  friend class Exporter;
  Claim(Exporter* exporter, std::shared_ptr<Exporter::Export_> e) : exporter_(exporter), export_(std::move(e)) {}
  Exporter* exporter_ = nullptr;
  std::shared_ptr<Exporter::Export_> export_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_EXPORTER_H_
