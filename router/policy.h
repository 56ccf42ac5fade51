// Whom to ask: a pure function of a snapshot of the cluster. Simulations and benchmarks run this very code.
//
// By cost (the default). A prefill worker costs the predicted time to token 0: the tokens ahead of this request and
// those of its prompt that the worker's cache does not hold, by the worker's own measured step cost. So a cached prefix
// attracts until the queue before it costs more than computing it elsewhere. A decode worker costs the predicted time
// of the next steps plus the hand-over from the prefill worker; it must have room for the prompt and the output that is
// expected. Of workers that cost nearly the same the one with the fewest requests is taken, then round-robin, so that
// measuring noise does not send everything to one. With `sample` set only that many workers, drawn by the seed, and the
// best holder of the prefix are compared: several routers with the same view then do not rush to the same worker.
//
// A prompt may also be computed by the decode worker itself (PickLocal). That costs the predicted time to token 0, in
// chunks that share steps with what decodes there, and the steps after it.
//
// Never chosen: draining, lost, warming or suspect workers, and those whose max_context is too small. Those the request has
// failed on already: only when no other is left.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_POLICY_H_
#define BATON_ROUTER_POLICY_H_

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/cluster_view.h"

namespace baton::router {

enum class PlacementRule { kCost, kRoundRobin, kRandom, kLeastLoaded };
// "cost", "round_robin", "random", "least_loaded"; anything else is kCost (the setting was checked before).
PlacementRule PlacementRuleFrom(absl::string_view name);
absl::string_view Name(PlacementRule rule);

struct PolicyOptions {
  PlacementRule rule = PlacementRule::kCost;
  int sample = 0;                   // workers to compare; 0: all
  bool check_room = true;           // false: room is not asked for
  uint64_t max_backlog_tokens = 0;  // a worker with this many prompt tokens ahead takes no more; 0: no limit
};

struct PlacementNeed {
  uint64_t prompt_tokens = 0;
  uint64_t total_tokens = 0;   // prompt and output of one choice: what a worker's max_context must hold
  uint64_t output_tokens = 0;  // expected, of one choice
  uint32_t choices = 1;
  std::vector<uint64_t> prefix_names;  // of the prompt's full blocks, shortest first
  std::set<WorkerId> avoid;            // chosen only when there is no other
  bool only_others = false;            // not even then
  // KV blocks that prompt and expected output take on a decode worker.
  uint64_t Blocks(uint32_t block_size) const;
};

struct Candidate {
  WorkerId id;
  double predicted_us = 0;
  double ttft_us = 0;          // of that, to token 0; decode: 0
  uint64_t queue_tokens = 0;   // prefill: ahead of this request
  uint64_t cached_tokens = 0;  // prefill: of its prompt
  uint32_t sequences = 0;      // decode: there already
  uint64_t free_blocks = 0;    // decode: not promised to others
  bool measured = false;       // the worker has told its step cost
};

struct Choice {
  size_t worker = 0;                  // index in the snapshot
  std::vector<Candidate> candidates;  // at most 4, the chosen one first, the others by cost
  uint32_t considered = 0;
  const Candidate& chosen() const { return candidates.front(); }
};

// Microseconds that computing `tokens` tokens, after `cached` that need not be, takes a worker with `queue` tokens
// ahead.
double PrefillUs(const WorkerSnapshot& worker, uint64_t queue, uint64_t cached, uint64_t tokens);
// The same on a decode worker, whose steps also carry what decodes there. `cost` is its own for such steps, or one like it.
double LocalPrefillUs(const WorkerSnapshot& worker, const StepCost& cost, uint64_t cached, uint64_t tokens);
// Microseconds of one of those steps, with a chunk of a prompt of `tokens` tokens.
double MixedStepUs(const WorkerSnapshot& worker, const StepCost& cost, uint64_t tokens);
// What prefill steps of `worker` take: as measured by itself, or, as long as it has hardly computed any prompts, what the
// other workers measured, if that is less: else a guess that is too high would never be put right.
StepCost PrefillCostOf(std::span<const WorkerSnapshot> workers, const WorkerSnapshot& worker);
// Microseconds of one step of a decode worker with `more` sequences of `tokens` tokens added.
double StepUs(const WorkerSnapshot& worker, uint32_t more, uint64_t tokens);
// Requests like this one that a decode worker which is full of them finishes in a second; 0: not known.
double FinishedPerSecond(const WorkerSnapshot& worker, const PlacementNeed& need);

// Microseconds until token 0 if the fastest ready worker that may compute prompts, a prefill worker (`remote`) or a decode
// worker (`local`), were idle: what no queue makes less. 0: not known, or of one of them not of late. `depth` as in PickPrefill.
double LeastTtftUs(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, std::span<const uint16_t> depth,
                   bool remote, bool local);

// UNAVAILABLE names the missing pool, the states of its workers, and what to start. RESOURCE_EXHAUSTED: workers are
// ready, and none has room now. FAILED_PRECONDITION: workers are ready, and none could ever take total_tokens.
//
// `depth[slot]` is how many of need.prefix_names that worker holds.
absl::StatusOr<Choice> PickPrefill(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                   std::span<const uint16_t> depth, const PolicyOptions& options, uint64_t seed);
// `transfer_us(worker)`: of the hand-over to it; null: not known. A negative value: that way has just failed, and it is
// taken only when there is no other.
absl::StatusOr<Choice> PickDecode(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                  const std::function<double(const WorkerSnapshot&)>& transfer_us,
                                  const PolicyOptions& options, uint64_t seed);

// A decode worker that computes the prompt too. `depth` as in PickPrefill.
absl::StatusOr<Choice> PickLocal(std::span<const WorkerSnapshot> workers, const PlacementNeed& need,
                                 std::span<const uint16_t> depth, const PolicyOptions& options, uint64_t seed);

}  // namespace baton::router

#endif  // BATON_ROUTER_POLICY_H_
