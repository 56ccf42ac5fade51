// Continuous batching over one model on one device. The engine has no role: a prefill worker uses SubmitPrefill, a decode
// worker ReserveKv and SubmitDecode, and one process alone Submit (the oracle that every test compares with).
//
// Thread contract: all methods may be called from any thread and return at once; work happens on the engine's own
// thread, which also calls sinks and callbacks.
#ifndef BATON_ENGINE_ENGINE_H_
#define BATON_ENGINE_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/stall_watch.h"
#include "engine/request.h"
#include "engine/step_cost.h"
#include "kvcache/block_pool.h"
#include "kvcache/prefix_journal.h"
#include "model/model_runner.h"

namespace baton {
class Clock;
}

namespace baton::engine {

struct EngineOptions {
  int max_batch_tokens = 512;  // rows of one step
  int mixed_batch_tokens = 0;  // rows of a step in which sequences decode; 0: max_batch_tokens
  absl::Duration step_target = absl::InfiniteDuration();  // such a step gets fewer rows where it would take longer
  int max_sequences = 64;      // sequences in one batch
  int max_queue = 1024;        // waiting requests before RESOURCE_EXHAUSTED
  bool prefix_cache = true;
  int block_size = 16;
  kernels::DType kv_dtype = kernels::DType::kF16;
  int64_t num_blocks = 0;
  std::vector<int32_t> eos_token_ids;
  // Where KV is on a device: sinks hear of blocks when they are final there, and the host has those that CopyToHost was asked
  // for. False: when they are on the host too.
  bool exports_from_device = false;
};

struct EngineLoad {
  int running = 0;
  int waiting = 0;
  int64_t waiting_tokens = 0;
  int64_t steps = 0;  // that ran the model
  int64_t tokens_per_second = 0;
  int64_t pending_tokens = 0;  // known tokens whose KV is still to be computed, over running and waiting ones
  int64_t context_tokens = 0;  // positions that the running sequences hold
  StepCost cost;          // of steps that only decode
  StepCost prefill_cost;  // of the others
  int mixed_batch_tokens = 0;  // rows of a step in which sequences decode, at most, as of now
  int64_t blocks_to_host = 0, blocks_to_device = 0;  // copied between a device and the host so far
  kvcache::Ledger ledger;
};

class Engine {
 public:
  // `runner` and `clock` are not owned and outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options, model::ModelRunner* runner,
                                                        Clock* clock);
  virtual ~Engine() = default;  // stops the thread; open requests end with CANCELLED. Leases may outlive the engine.

  // Prefill and decode here.
  virtual void Submit(Request request, std::shared_ptr<RequestSink> sink) = 0;
  // Prefill and token 0 of every choice here: OnScheduled, OnComputed after each chunk, tokens, OnDone.
  virtual void SubmitPrefill(Request request, std::shared_ptr<RequestSink> sink) = 0;

  // Calls back with a lease on blocks for `num_tokens` positions once there is room for all; nothing is held meanwhile.
  // Blocks that the prefix cache holds for `prefix` come first and need no room (BlockLease::num_held).
  // RESOURCE_EXHAUSTED at once when the pool could never hold them, DEADLINE_EXCEEDED when there was none in time,
  // CANCELLED after Cancel(request_id).
  virtual void ReserveKv(std::string request_id, int num_tokens, absl::Time deadline,
                         std::function<void(absl::StatusOr<kvcache::BlockLease>)> done, PrefixQuery prefix = {}) = 0;
  // Decode from output index 1. `prompt_kv` holds the prompt's KV; `first_tokens` has index 0 of every choice, in order
  // (choices whose finish_reason is set do not run). If it is preempted later, it recomputes here; the KV is not asked
  // for again. INVALID_ARGUMENT when the lease is not this engine's or too small for the prompt.
  virtual void SubmitDecode(Request request, kvcache::BlockLease prompt_kv, std::vector<SampledToken> first_tokens,
                            std::shared_ptr<RequestSink> sink) = 0;

  // KV that was computed elsewhere, of whole blocks of `token_ids`, becomes part of the prefix cache. What cannot be used is
  // dropped.
  virtual void AdoptPrefix(std::string tenant, std::vector<int32_t> token_ids, kvcache::BlockLease kv) = 0;

  // With exports_from_device: copies blocks of this engine, that no longer change, to the host, then runs `done` on the
  // engine's thread. An engine that stops may drop both.
  virtual void CopyToHost(kvcache::BlockLease blocks, std::function<void()> done) = 0;

  // `then` runs on the engine's thread after each step and each round of commands: sinks have been told all there is for
  // now. Must be quick. A former `then` may still run once while this replaces it.
  virtual void AfterSteps(std::function<void()> /*then*/) {}

  // Within one step the request's sink gets OnDone(CANCELLED) and its blocks are free. Unknown ids are ignored.
  virtual void Cancel(const std::string& request_id) = 0;

  // From now on submissions and reservations end with UNAVAILABLE; what was accepted goes on, and SubmitDecode into room
  // that was promised before is still accepted.
  virtual void Drain() = 0;
  // Undoes Drain. The prefix cache is as it was.
  virtual void Resume() = 0;
  // True when nothing runs, waits or is leased.
  virtual bool Idle() const = 0;

  virtual EngineLoad load() const = 0;
  // Whether the engine gets on. Waits for nothing that its thread may hold for long.
  virtual Activity activity() const = 0;
  // Names of the prefixes in the cache. Without prefix_cache version 0: there is nothing to tell, ever.
  virtual kvcache::PrefixJournal::Report prefixes_since(uint64_t version) const = 0;
  virtual kernels::KvLayout kv_layout() const = 0;
  // Whose blocks are the engine's alone; for what concerns its memory as a whole.
  virtual std::shared_ptr<kvcache::BlockPool> pool() const = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_H_
