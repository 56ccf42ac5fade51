// Who computes a request's prompt: a prefill worker, with a hand-over to the decode worker (remote), or the decode worker
// itself (local). Chosen by predicted times, not by a length.
//
// Each way costs the time to token 0, the part of the hand-over that does not overlap with prefill, and what it takes from
// others: a prefill of d microseconds delays each of the sequences that decode on the same worker by d (local), or the
// requests that queue on the prefill worker, of which as many are expected behind this one as are there now (remote).
// Where latency is promised, a way that keeps the promise with room to spare is preferred to one that just keeps it, and that
// to one that does not, whatever they cost: a mixed step is made as long as the promise allows, so that a prompt computed
// between others' tokens takes all of their room, which a prefill worker whose queue is short leaves alone. Where neither keeps
// it, the one that misses it by less.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_SERVING_MODE_H_
#define BATON_ROUTER_SERVING_MODE_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/policy.h"

namespace baton::router {

// The setting `mode`.
enum class ServingMode { kDisaggregated, kAggregated, kAuto };
// "disaggregated", "aggregated"; anything else is kAuto (the setting was checked before).
ServingMode ServingModeFrom(absl::string_view name);
absl::string_view Name(ServingMode mode);

// What one way would take. The workers are those that the policy chose for it.
struct ModeForecast {
  bool local = false;
  WorkerId worker;  // that computes the prompt
  double ttft_us = 0;
  double handover_us = 0;
  double others_us = 0;
  double itl_us = 0;      // between tokens of those who decode there, while the prompt is computed and after
  bool measured = false;  // by costs that are known
  bool aged = false;      // ... but of a while ago: nobody is refused for them, or they would never be measured again
  bool full_steps = false;  // others decode in steps that the prompt fills up to what the promise allows
  double total_us() const { return ttft_us + handover_us + others_us; }
};

// `transfer_us`: of the prompt's KV from `prefill` to `decode`. `decode` is null when no token after the first is wanted.
ModeForecast ForecastRemote(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, const Choice& prefill,
                            const Choice* decode, double transfer_us);
ModeForecast ForecastLocal(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, const Choice& local);

// What is left of the request's promise; infinite: none.
struct LatencyLeft {
  absl::Duration ttft = absl::InfiniteDuration();
  absl::Duration itl = absl::InfiniteDuration();
};

// True: local.
bool PreferLocal(const ModeForecast& remote, const ModeForecast& local, const LatencyLeft& left);

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVING_MODE_H_
