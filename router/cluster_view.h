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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/cluster.pb.h"

namespace baton::router {

enum class Role { kPrefill, kDecode };
absl::string_view Name(Role role);  // as WorkerInfo.role spells it

enum class WorkerState { kReady, kDraining, kLost };
absl::string_view Name(WorkerState state);  // as ClusterWorker.state spells it

struct WorkerId {
  std::string name;
  std::string incarnation;
  auto operator<=>(const WorkerId&) const = default;
};

// One worker at one moment: all that a policy may look at.
struct WorkerSnapshot {
  WorkerId id;
  Role role = Role::kPrefill;
  WorkerState state = WorkerState::kReady;
  bool suspect = false;      // a call to it failed since its last heartbeat
  std::string address;       // gRPC, host:port
  uint32_t max_context = 0;  // tokens
  uint32_t block_size = 0;   // tokens
  uint32_t running = 0;      // sequences, as last reported
  uint32_t waiting = 0;      // requests, as last reported
  uint64_t waiting_tokens = 0;
  uint64_t free_blocks = 0;  // free or evictable, as last reported; total_blocks before the first report
  uint64_t total_blocks = 0;
  uint32_t in_flight = 0;         // requests the router has on it now
  uint64_t in_flight_tokens = 0;  // their prompt tokens
};

struct ClusterViewOptions {
  absl::Duration heartbeat = absl::Milliseconds(500);        // told to workers
  absl::Duration worker_timeout = absl::Milliseconds(3000);  // without a heartbeat, until lost
  std::string model_name;                                    // the router's own; empty: not compared
  std::string tokenizer_fingerprint;                         // likewise
  int max_workers = 1024;                                    // registered at once
  int max_refusals = 16;                                     // kept for status
  absl::Duration forget_lost_after = absl::Minutes(10);
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
  // NOT_FOUND: not registered, lost, or replaced: register again.
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);
  // Takes the worker out without touching what runs on it. NOT_FOUND as above.
  absl::Status Deregister(const WorkerId& id);
  // Marks workers that were silent for worker_timeout as lost. Call it a few times per timeout.
  void ExpireSilent();

  std::vector<WorkerSnapshot> Snapshot() const;  // ordered by name; lost ones included
  // At least one ready worker of each role.
  bool Ready() const;
  // Smallest over ready and draining workers; nullopt without any.
  std::optional<uint32_t> MaxContext() const;

  // What the router has on a worker. Calls pair up; unknown ids are ignored (the worker may be gone).
  void AddInFlight(const WorkerId& id, uint64_t prompt_tokens);
  void RemoveInFlight(const WorkerId& id, uint64_t prompt_tokens);
  // A call to it failed. It is chosen last until its next heartbeat; one transient error never bans a worker.
  void ReportFailure(const WorkerId& id);

  // Fills workers, fingerprint and refused.
  void FillStatus(v1::ClusterStatus* status) const;
  const ClusterViewOptions& options() const { return options_; }

 private:
  struct Worker {
    v1::WorkerInfo info;
    v1::WorkerLoad load;
    bool has_load = false;
    Role role = Role::kPrefill;
    WorkerState state = WorkerState::kReady;
    bool suspect = false;
    absl::Time last_heard;
    uint32_t in_flight = 0;
    uint64_t in_flight_tokens = 0;
  };

  absl::Status RegisterLocked(const v1::WorkerInfo& info, std::vector<std::pair<WorkerId, std::string>>* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckCompatible(const v1::WorkerInfo& info) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Any live worker but `except_name` (all live ones are equal in what is compared); null without one.
  const Worker* Reference(absl::string_view except_name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Worker* Find(const WorkerId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NotRegistered(absl::string_view name, absl::string_view incarnation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ClusterViewOptions options_;
  Clock* const clock_;
  const GoneCallback on_gone_;
  mutable Mutex mu_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mu_);  // by name
  std::deque<WorkerId> fenced_ ABSL_GUARDED_BY(mu_);            // the latest replaced incarnations
  std::deque<std::string> refused_ ABSL_GUARDED_BY(mu_);
};

// Names of the differing fields with both values, such as "layout.block_size (ours 16, theirs 32)"; empty when equal.
std::vector<std::string> Differences(const v1::WorkerInfo& ours, const v1::WorkerInfo& theirs);

}  // namespace baton::router

#endif  // BATON_ROUTER_CLUSTER_VIEW_H_
