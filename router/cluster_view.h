// Who is in the cluster: workers by (name, incarnation), what they last said of themselves, and what the router has on
// each. Identity is never an address: a new incarnation of a name fences the old one.
//
// Two workers may hand over only when their model fingerprint and KV layout are equal, so all workers are compared,
// field by field, with the first one; the reference is forgotten when no live worker is left. The tokenizer and the
// served model's name are compared with the router's own, because it is the router that makes the token ids.
//
// Thread contract: all methods may be called from any thread. on_gone is called without a lock held, on the thread of
// the method that found out. Time comes from the injected clock only.
#ifndef BATON_ROUTER_CLUSTER_VIEW_H_
#define BATON_ROUTER_CLUSTER_VIEW_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/cluster.pb.h"
#include "router/prefix_directory.h"

namespace baton::router {

enum class Role { kPrefill, kDecode };
absl::string_view Name(Role role);  // as WorkerInfo.role spells it

// kWarming: it has joined, and no generation through it has passed yet; it gets no requests.
enum class WorkerState { kReady, kDraining, kLost, kWarming };
absl::string_view Name(WorkerState state);  // as ClusterWorker.state spells it

struct WorkerId {
  std::string name;
  std::string incarnation;
  auto operator<=>(const WorkerId&) const = default;
};

// A worker's own measure of its steps (proto StepCost).
struct StepCost {
  double fixed_us = 0, per_row_us = 0, per_position_us = 0;
  uint64_t samples = 0;  // 0: not told
};

// One worker at one moment: all that a policy may look at. What a worker reports is at most a heartbeat old; what this
// router has sent and taken back since is already counted in.
struct WorkerSnapshot {
  WorkerId id;
  uint64_t key = 0;   // of the id, for maps
  uint32_t slot = 0;  // in the prefix directory
  Role role = Role::kPrefill;
  WorkerState state = WorkerState::kReady;
  bool suspect = false;      // it did not answer a call, and has not been heard of since
  bool changes_role = false;  // it can become a worker of the other role
  std::string address;       // gRPC, host:port
  uint32_t max_context = 0;  // tokens
  uint32_t block_size = 0;   // tokens
  uint64_t block_bytes = 0;  // 0 before the first report
  uint32_t max_sequences = 0;     // in one step; 0: not known
  uint32_t max_batch_tokens = 0;  // likewise
  uint32_t sequences = 0;         // running and waiting ones
  uint64_t pending_tokens = 0;    // whose KV is still to be computed
  uint64_t context_tokens = 0;    // positions of running sequences
  uint64_t free_blocks = 0;       // free or evictable; total_blocks before the first report
  uint64_t total_blocks = 0;
  uint64_t promised_blocks = 0;  // to requests this router has on it, whether or not they have come to use them
  uint32_t promised_sequences = 0;  // likewise: those whose prompt is still computed elsewhere are not in `sequences`
  uint32_t in_flight = 0;        // requests this router has on it
  StepCost cost;                    // of steps that only decode
  StepCost prefill_cost;            // of the others
  bool cost_aged = false;           // it has made no step for a while: both are of then, which may have been a bad moment
  uint32_t mixed_batch_tokens = 0;  // of steps that do both, at most; 0: not known
};

// What one request weighs on a worker.
struct InFlightWork {
  uint64_t tokens = 0;     // to be computed
  uint32_t sequences = 0;  // choices
  uint64_t blocks = 0;     // promised
  uint32_t requests = 1;   // 0: only more of a request that is counted already
};

struct ClusterViewOptions {
  absl::Duration heartbeat = absl::Milliseconds(250);        // told to workers
  absl::Duration worker_timeout = absl::Milliseconds(1500);  // without a heartbeat, until lost
  std::string model_name;                                    // the router's own; empty: not compared
  std::string tokenizer_fingerprint;                         // likewise
  bool warm_up = false;         // workers that join are kWarming until MarkWarm
  bool prefill_needed = true;   // Ready() asks for a prefill worker
  int max_workers = 1024;                                    // registered at once
  int max_refusals = 16;                                     // kept for status
  absl::Duration forget_lost_after = absl::Minutes(10);
  absl::Duration cost_ages_after = absl::Seconds(20);        // without a step
};

class ClusterView {
 public:
  // Called when requests on `id` must go elsewhere; `why` is for people.
  using GoneCallback = std::function<void(const WorkerId& id, const std::string& why)>;

  // `clock` is not owned and outlives the view.
  ClusterView(ClusterViewOptions options, Clock* clock, GoneCallback on_gone);

  // INVALID_ARGUMENT: a field is missing or out of its limits. FAILED_PRECONDITION: another model, layout or tokenizer
  // (the message lists each differing field with both values), or an incarnation that a newer one has replaced.
  // RESOURCE_EXHAUSTED: max_workers are registered. Registering twice is OK and refreshes what is known.
  absl::Status Register(const v1::WorkerInfo& info);
  // NOT_FOUND: not registered, lost, or replaced: register again. `prefix_version`, if not null, becomes the version of
  // the worker's prefixes that is known now.
  absl::Status Heartbeat(const v1::HeartbeatRequest& request, uint64_t* prefix_version = nullptr);
  // Takes the worker out without touching what runs on it. NOT_FOUND as above.
  absl::Status Deregister(const WorkerId& id);
  // Marks workers that were silent for worker_timeout as lost. Call it a few times per timeout.
  void ExpireSilent();
  // This process itself stood still (frozen, or without a processor): what workers said meanwhile is still to be read, so
  // that much of their silence does not count.
  void ForgiveSilence(absl::Duration while_deaf);

  std::vector<WorkerSnapshot> Snapshot() const;  // ordered by name; lost ones included
  // Shows the same without copying (in no order), under the view's lock: `look` is quick and does not call back.
  void Read(absl::FunctionRef<void(std::span<const WorkerSnapshot>, const PrefixDirectory&)> look) const;
  // True once a worker of that role has registered, whatever became of it.
  bool Ever(Role role) const;
  // At least one ready worker of each role (of decode only, where prefill is not needed).
  bool Ready() const;
  // Smallest over ready and draining workers; nullopt without any.
  std::optional<uint32_t> MaxContext() const;

  // What the router has on a worker. Calls pair up; unknown ids are ignored (the worker may be gone).
  void AddInFlight(const WorkerId& id, const InFlightWork& work);
  void RemoveInFlight(const WorkerId& id, const InFlightWork& work);
  // A prompt was sent there: its prefixes are expected in that worker's cache.
  void ExpectPrefixes(const WorkerId& id, std::span<const uint64_t> names);
  // A generation through it has passed: requests may come.
  void MarkWarm(const WorkerId& id);
  // A call did not reach it. It is not chosen until its next heartbeat, or for a second (two, four, ... when that goes
  // on): one transient error never bans a worker.
  void ReportUnreachable(const WorkerId& id);

  // Live workers that `id` may fetch KV from: those of the other role that say where they serve it.
  std::vector<v1::KvPeer> KvPeers(const WorkerId& id) const;

  // Fills workers, fingerprint and refused.
  void FillStatus(v1::ClusterStatus* status) const;
  const ClusterViewOptions& options() const { return options_; }

 private:
  struct Worker {
    v1::WorkerInfo info;
    v1::WorkerLoad load;
    size_t row = 0;  // in rows_
    bool warm = false;
    absl::Time last_heard;
    absl::Time suspect_until;
    absl::Duration suspect_for;
    absl::Time last_step = absl::InfinitePast();  // when the steps that its costs are of were seen to grow
    // Tokens to be computed. This router's own go when they are done, not while they are being computed; the report has
    // that, and is old. The smaller of the two is the better bound.
    uint64_t reported_tokens = 0;
    uint64_t since_tokens = 0;   // sent since the report
    uint64_t own_tokens = 0;
    uint64_t other_tokens = 0;  // of other routers, as of the report
  };

  absl::Status RegisterLocked(const v1::WorkerInfo& info, std::vector<std::pair<WorkerId, std::string>>* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckCompatible(const v1::WorkerInfo& info) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Any live worker but `except_name` (all live ones are equal in what is compared); null without one.
  const Worker* Reference(absl::string_view except_name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Worker* Find(const WorkerId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WorkerState StateOf(const Worker& worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return rows_[worker.row].state;
  }
  void UpdatePending(const Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A fresh incarnation in `worker`, which has a row.
  void Restart(Worker* worker, const v1::WorkerInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::map<std::string, Worker>::iterator Erase(std::map<std::string, Worker>::iterator it)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NotRegistered(absl::string_view name, absl::string_view incarnation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ClusterViewOptions options_;
  Clock* const clock_;
  const GoneCallback on_gone_;
  mutable Mutex mu_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mu_);  // by name
  std::vector<WorkerSnapshot> rows_ ABSL_GUARDED_BY(mu_);       // one for each worker
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  uint32_t next_slot_ ABSL_GUARDED_BY(mu_) = 0;
  bool ever_prefill_ ABSL_GUARDED_BY(mu_) = false;
  bool ever_decode_ ABSL_GUARDED_BY(mu_) = false;
  PrefixDirectory prefixes_ ABSL_GUARDED_BY(mu_);
  std::deque<WorkerId> fenced_ ABSL_GUARDED_BY(mu_);            // the latest replaced incarnations
  std::deque<std::string> refused_ ABSL_GUARDED_BY(mu_);
};

// Names of the differing fields with both values, such as "layout.block_size (ours 16, theirs 32)"; empty when equal.
std::vector<std::string> Differences(const v1::WorkerInfo& ours, const v1::WorkerInfo& theirs);

}  // namespace baton::router

#endif  // BATON_ROUTER_CLUSTER_VIEW_H_
