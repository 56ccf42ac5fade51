// What the exporter keeps of each export and of each claim on it. Only exporter.cc and claim.cc look inside.
#ifndef BATON_KVTRANSFER_EXPORT_RECORD_H_
#define BATON_KVTRANSFER_EXPORT_RECORD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/transfer_state.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer {

struct ExportRecord;

// One claim. Claims of one export are independent; each belongs to its transport's thread, except what says otherwise.
struct ExportReader {
  std::shared_ptr<ExportRecord> e;
  std::string consumer;
  uint32_t attempt = 0;
  size_t first_block = 0;
  bool from_device = false;
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
struct ExportRecord {
  v1::Ticket ticket;
  kvcache::BlockLease lease;
  absl::Duration lease_duration;
  bool on_device = false;  // what is sealed is there; on the host the first num_on_host
  std::atomic<size_t> num_sealed{0};
  std::atomic<size_t> num_on_host{0};  // on_device
  // Written before `closed`, once.
  bool finished = false;
  std::string payload;
  std::atomic<bool> closed{false};
  // Guarded by Exporter::mu_.
  absl::Time issued;
  absl::Time deadline;  // while nobody reads
  size_t host_asked = 0;  // on_device: the first blocks that copy_to_host was called for
  TransferState state = TransferState::kOffered;
  uint32_t uses_left = 1;
  int broken = 0;
  absl::Status end_reason;  // told to readers; OK: it was released
  bool delivered = false;
  std::function<void(absl::Status)> on_over;
  std::vector<std::shared_ptr<ExportReader>> readers;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_EXPORT_RECORD_H_
