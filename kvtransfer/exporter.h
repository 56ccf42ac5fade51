// The sending side's book of exports: who may read which blocks, how often, and until when.
//
// An export is issued before its blocks are written: Export() gives the ticket, Seal() says how many of them are final,
// Close() that all are and what else the receiver needs. A transport may claim it at any time and sends what is sealed.
//
// Ownership: an export owns its BlockLease from Export() until it is fetched, released or expired. While a Claim exists
// a transport may be reading the bytes, so release and expiry then only mark the export; the blocks are freed when the
// last Claim ends (two-phase). An export that nobody reads expires a lease after it was closed, or at its open_until
// before that; a reader that is not heard of for a lease is stopped.
#ifndef BATON_KVTRANSFER_EXPORTER_H_
#define BATON_KVTRANSFER_EXPORTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "kernels/kv_view.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/claim.h"
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
  kConsumed,     // no use is left, or an attempt that a later one replaced
  kExpired,      // its time passed, the reaper had not come yet
  kMismatch,     // same transfer id, other contents
  kGeneration,   // a block no longer holds what was exported
};
inline constexpr int kNumRefusals = 8;
absl::string_view Name(Refusal refusal);

// What an export is for.
struct ExportSpec {
  std::string request_id;
  uint32_t epoch = 1;
  uint32_t num_tokens = 0;     // positions that the lease's blocks are for
  absl::Duration lease;
  uint32_t num_consumers = 1;  // fetches that may complete
  // Until when it may stay open (not closed): the request's deadline.
  absl::Time open_until = absl::InfiniteFuture();
  // Told once when the export is over and its blocks are free: OK when the last use was fetched whole, else why not.
  // Runs on whatever thread ended it, without a lock of ours; must be quick.
  std::function<void(absl::Status)> on_over;
};

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
    bool block_tags = false;  // tickets promise keyed tags
    std::function<TransferId()> new_id = TransferId::Random;  // another one only where a seed must repeat a run
    bool unchecked_for_bench = false;  // no checksums are made
    // Set: blocks of a pool with a device are sealed when they are final there, and the host's memory has those only that this
    // was called for, when a claim reads it. Begins to copy `blocks` and calls `done` (on any thread, or never) when they are
    // there. Called on any thread, without a lock of ours; must be quick. Null: what is sealed is on the host.
    std::function<void(kvcache::BlockLease blocks, std::function<void()> done)> copy_to_host;
  };

  struct Counters {
    uint64_t exported = 0;
    uint64_t completed = 0;  // fetches that got everything
    uint64_t finished = 0;   // of those, ended early because the request had
    uint64_t failed = 0;     // claims that ended otherwise
    uint64_t released = 0;
    uint64_t expired = 0;    // exports, and readers that fell silent
    uint64_t superseded = 0;  // by a newer epoch of the same request
    uint64_t replaced = 0;    // claims, by a later attempt of the same receiver
    uint64_t impossible = 0;  // events the state table calls impossible; always 0
    uint64_t bytes_sent = 0;  // of completed transfers
    double posting_seconds = 0, waiting_seconds = 0;  // of ended claims, as in v1::TransferEnd
    uint64_t refusals[kNumRefusals] = {};
    size_t outstanding = 0;  // exports not yet over, those being read included
    size_t in_flight = 0;    // claims that exist
    absl::Duration oldest;   // since the oldest of the outstanding was issued
    size_t by_age[4] = {};   // outstanding: below 1 s, 10 s, 60 s, older
  };

  explicit Exporter(Options options);
  // Frees what nobody reads. All Claims must have ended: stop the transport servers first.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Where tickets say the blocks can be fetched. Called by each transport server when it starts; the first one's
  // transport is the one tickets prefer. One of the same transport replaces the earlier.
  void AddEndpoint(v1::Endpoint endpoint);

  // Keeps the lease and gives the signed ticket; no block is sealed yet. An outstanding export of the same request with
  // a lower epoch is released.
  // FAILED_PRECONDITION: no endpoint yet. INVALID_ARGUMENT: a field of `spec` out of bounds, or the lease does not hold
  // exactly the blocks that num_tokens need. ABORTED: a higher epoch of the request is outstanding. RESOURCE_EXHAUSTED:
  // max_outstanding. On error the lease is freed.
  absl::StatusOr<v1::Ticket> Export(const ExportSpec& spec, kvcache::BlockLease lease);
  // The first `num_sealed` blocks no longer change; never goes back. False: the export is over.
  bool Seal(TransferId id, size_t num_sealed);
  // Nothing more is to come. `payload` (at most kMaxEndPayloadBytes) closes every fetch. finished: the request ended, so
  // that receivers need not wait for blocks that are not sealed. False: the export is over, or was closed already.
  bool Close(TransferId id, bool finished, std::string payload);
  // Releases; readers hear `why`. False: it is over.
  bool Fail(TransferId id, absl::Status why);
  // Export, Seal and Close in one, for KV that is complete.
  absl::StatusOr<v1::Ticket> ExportSealed(const ExportSpec& spec, kvcache::BlockLease lease);

  // Of many calls with one single-use ticket exactly one succeeds, but for an attempt that replaces an earlier one of
  // the same receiver: that one is told to stop.
  // INVALID_ARGUMENT malformed, PERMISSION_DENIED forged, ABORTED everything else (unknown, consumed, expired, other
  // incarnation, stale blocks); each is counted.
  // from_device: the caller can read the device's memory; Claim::from_device says whether it is to.
  absl::StatusOr<Claim> ClaimTicket(const v1::FetchOpen& open, bool from_device = false);

  // Idempotent. True when it was held and is now free or will be once its readers stop.
  bool Release(TransferId id);
  // The same for what is exported for `request_id` at `epoch` or before.
  bool ReleaseRequest(absl::string_view request_id, uint32_t epoch);
  // Ends what is due at `now`; returns how many.
  size_t ReapExpired(absl::Time now);
  // Releases every export; drain's last step. Returns how many.
  size_t ReleaseAll();

  Counters counters() const;
  const Options& options() const { return options_; }

 private:
  friend class Claim;
  using Exports = std::map<TransferId, std::shared_ptr<ExportRecord>>;
  // What must happen after the lock is gone.
  struct After {
    std::vector<kvcache::BlockLease> freed;
    std::vector<std::shared_ptr<ExportReader>> wake;
    std::vector<std::shared_ptr<ExportRecord>> over;
    struct HostCopy {
      TransferId id;
      kvcache::BlockLease blocks;
      size_t end;
    };
    std::vector<HostCopy> copies;
  };
  // What copies that are under way find; they may end after the exporter has.
  struct Door {
    Mutex mu;
    Exporter* exporter ABSL_GUARDED_BY(mu) = nullptr;
  };

  // Applies `event`; true unless it did nothing.
  bool Apply(Exports::iterator it, TransferEvent event, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Supersede(const std::string& request_id, uint32_t epoch, After* after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::Ticket> MakeTicket(const ExportSpec& spec, const kvcache::BlockLease& lease) const;
  bool EndExport(TransferId id, absl::Status why);
  // Beginning and end of claims: claim.cc, as ClaimTicket.
  absl::Status Refuse(Refusal why, absl::StatusCode code, absl::string_view what);
  // Null, and why: the claim is refused.
  std::shared_ptr<ExportReader> Admit(const v1::FetchOpen& open, bool from_device, Refusal* why,
                                      absl::string_view* what, After* after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndClaim(const std::shared_ptr<ExportReader>& reader, ClaimEnd how);
  // Sealed blocks that a reader of the host's memory waits for, and nobody has asked for yet.
  void AskForHostCopies(Exports::iterator it, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first `end` blocks are on the host.
  void OnHost(TransferId id, size_t end);
  void Finish(After after);
  void ReapLoop();

  const Options options_;
  const std::shared_ptr<Door> door_ = std::make_shared<Door>();
  mutable Mutex mu_;
  CondVar stop_cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::Endpoint> endpoints_ ABSL_GUARDED_BY(mu_);
  Exports exports_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, TransferId> by_request_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
  std::thread reaper_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_EXPORTER_H_
