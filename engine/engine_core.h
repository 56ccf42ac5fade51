// The engine without its thread: requests in, one step at a time, tokens out. Tests and simulations drive it directly;
// engine.cc puts it on a thread.
//
// A step: ask the scheduler, give and take blocks as it says, run the model once, sample, tell the sinks.
//
// Where the model wants its KV on a device (ModelRunner::device), blocks are copied to the host before a sink hears
// that they are final (or, with exports_from_device, when CopyToHost asks), and from it before a sequence that was handed
// over runs. Steps go on meanwhile: what waits for a copy is done at the beginning of the first step that finds it done,
// and a step that has nothing else to do waits for it.
//
// Thread contract: one thread at a time. Sinks and callbacks are called from inside these methods and must not call
// back into the core.
#ifndef BATON_ENGINE_ENGINE_CORE_H_
#define BATON_ENGINE_ENGINE_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "engine/batch_builder.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_cost.h"
#include "kvcache/block_pool.h"
#include "kvcache/device_blocks.h"
#include "kvcache/prefix_index.h"
#include "model/model_runner.h"

namespace baton::engine {

class EngineCore {
 public:
  using ReserveDone = std::function<void(absl::StatusOr<kvcache::BlockLease>)>;

  // INVALID_ARGUMENT for options that make no sense; RESOURCE_EXHAUSTED when the pool's memory cannot be mapped, or its
  // device has no room.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(const EngineOptions& options, model::ModelRunner* runner,
                                                            Clock* clock);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // As in Engine; `mode` is kComplete or kPrefill, `submitted` is when the caller asked.
  void Submit(Request request, Mode mode, std::shared_ptr<RequestSink> sink, absl::Time submitted);
  void SubmitDecode(Request request, kvcache::BlockLease prompt_kv, std::vector<SampledToken> first_tokens,
                    std::shared_ptr<RequestSink> sink, absl::Time submitted);
  void Reserve(std::string request_id, int num_tokens, absl::Time deadline, ReserveDone done, PrefixQuery prefix = {});
  void AdoptPrefix(const std::string& tenant, std::span<const int32_t> token_ids, kvcache::BlockLease kv);
  void CopyToHost(kvcache::BlockLease blocks, std::function<void()> done);
  void Cancel(const std::string& request_id);
  void Drain() { draining_ = true; }
  void Resume() { draining_ = false; }
  // Everything open ends with `status`.
  void EndAll(const absl::Status& status);

  // One step. False: nothing could be done now; only a new call, a returned lease or a deadline changes that.
  bool Step();
  // Nothing runs or waits here (leases held elsewhere are not counted).
  bool Quiet() const { return requests_.empty() && reservations_.empty() && copying_.empty(); }
  // The earliest deadline of anything open.
  absl::Time NextDeadline() const;

  EngineLoad load() const;
  kvcache::BlockPool* pool() const { return pool_.get(); }
  const kvcache::PrefixJournal* journal() const { return &journal_; }  // thread-safe
  // Gives the prefix cache's blocks back.
  void DropPrefixCache();

 private:
  struct Reservation {
    std::string request_id;
    int64_t num_blocks = 0;
    absl::Time deadline;
    ReserveDone done;
    PrefixQuery prefix;
  };

  EngineCore(const EngineOptions& options, model::ModelRunner* runner, Clock* clock,
             std::shared_ptr<kvcache::BlockPool> pool);

  // OK, or why the request can never run.
  absl::Status Validate(const Request& request, Mode mode) const;
  absl::Status ValidateImport(const Request& request, const kvcache::BlockLease& prompt_kv,
                              const std::vector<SampledToken>& first_tokens) const;
  // Of the choices that go on; `first_tokens` is empty where they are not known yet.
  absl::Status ValidateResume(const Request& request, const std::vector<SampledToken>& first_tokens) const;
  // INTERNAL when the client has another token 0 than the one that was sampled now.
  static absl::Status CheckFirst(const Request& request, const SampledToken& first);
  RequestState* Open(Request request, Mode mode, std::shared_ptr<RequestSink> sink, absl::Time submitted);
  std::unique_ptr<Sequence> NewSequence(RequestState* state) const;
  // Ends a request: its sequences and blocks go first, then the sink hears. The pointer is dead afterwards.
  void Finish(RequestState* state, const absl::Status& status);
  void FinishReservation(uint64_t id, absl::StatusOr<kvcache::BlockLease> result);

  // Runs `then` when the copies that were begun so far are done, and what waits for copies already has run. `then`
  // holds the blocks. Without a device: now.
  template <typename Then>
  void AfterCopies(Then then) {
    kvcache::DeviceBlocks* const device = pool_->device();
    if (device == nullptr || (copying_.empty() && device->Done(device->latest()))) return then();
    copying_.push_back({device->latest(), std::move(then)});
  }
  // What AfterCopies waits for and is done; with `wait`, at least one. True: there was some.
  bool RunCopied(bool wait);
  // For `then`: a request that may be over by that time.
  struct RequestKey {
    std::string request_id;
    uint64_t arrival;
  };
  static RequestKey KeyOf(const RequestState& state) { return {state.request.request_id, state.arrival}; }
  RequestState* Find(const RequestKey& key) const;  // null: it is over
  // Finish with OK, once the sink was told of its blocks.
  void FinishAfterCopies(RequestState* state);
  // A handed-over prompt, whose KV is where the model reads it.
  void Join(RequestState* state, kvcache::BlockTable prompt_kv, const std::vector<SampledToken>& first_tokens);
  void InsertPrefix(const std::string& tenant, std::span<const int32_t> token_ids, const kvcache::BlockTable& table);
  // What follows AfterCopies may read the blocks where transports do.
  void MakeReadable(const kvcache::BlockLease& blocks);
  // Tells the sink how much of an exposed prefill is final.
  void TellComputed(const Sequence& sequence);

  Decision Plan(absl::Time now);
  // Rows of a step with decode rows, so that it stays below options_.step_target.
  int MixedBudget() const;
  void Expire(uint64_t id);
  void Preempt(uint64_t id);
  void Admit(uint64_t id);
  // Hands the prompt's blocks of a prefill to its sink.
  void Expose(Sequence* sequence);
  void Grant(uint64_t id);
  std::optional<kvcache::BlockTable> Allocate(int64_t num_blocks);
  void BuildBatch(const Decision& decision, absl::Time now);
  void RunBatch();
  void AfterForward(const BatchBuilder::Item& item, absl::Duration forward, std::span<const float> logits);
  // The next token of one choice of `sequence`, sent to the sink, with its finish_reason.
  absl::StatusOr<SampledToken> SampleNext(Sequence& sequence, int choice_index, std::span<const float> logits);
  void SampleFirst(std::unique_ptr<Sequence> sequence, std::span<const float> logits);
  // Makes a sequence for each unfinished choice: full blocks are shared, a partly filled last block is copied.
  void Fork(std::unique_ptr<Sequence> sequence, const std::vector<SampledToken>& first_tokens);
  // Blocks for every known token. False: there are not enough.
  bool GrowToTokens(Sequence* sequence);
  void Seal(Sequence* sequence);
  void OfferHistory(const Sequence& sequence);
  PrefixHit Peek(uint64_t id) const;

  const EngineOptions options_;
  model::ModelRunner* const runner_;
  Clock* const clock_;
  const std::shared_ptr<kvcache::BlockPool> pool_;
  kvcache::PrefixJournal journal_;
  std::unique_ptr<kvcache::PrefixIndex> index_;  // null: no prefix cache
  Sampler sampler_;
  BatchBuilder batch_;
  std::vector<float> logits_;
  StepCostModel cost_;          // steps that only decode
  StepCostModel prefill_cost_;  // the others
  StepCostExcess mixed_excess_;  // of those of the others in which sequences decode

  bool draining_ = false;
  uint64_t next_arrival_ = 1;
  int64_t step_ = 0;
  int64_t num_forwards_ = 0;  // steps that ran the model
  std::unordered_map<std::string, std::unique_ptr<RequestState>> requests_;
  std::map<uint64_t, std::unique_ptr<Sequence>> resident_;
  std::map<uint64_t, std::unique_ptr<Sequence>> waiting_;
  std::map<uint64_t, Reservation> reservations_;  // waiting; ids from the same sequence of ages
  struct Copying {
    uint64_t last_copy;
    absl::AnyInvocable<void()> then;
  };
  std::deque<Copying> copying_;  // empty without a device

  // Tokens sampled in the current window of at least one second, and the rate of the last whole one.
  int64_t window_tokens_ = 0;
  absl::Time window_start_;
  int64_t tokens_per_second_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_CORE_H_
