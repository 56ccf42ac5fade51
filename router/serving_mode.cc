#include "router/serving_mode.h"

#include <algorithm>

namespace baton::router {
namespace {

// Of what is left, the share that a forecast may fill and still have room to spare (full steps never have: they are as long as
// they may be). A forecast of a queue is surer than one of steps that others' prompts may share.
constexpr double kRoomyTtft = 0.6, kRoomyItl = 0.7;

// 0: not at all, 1: just, 2: with room to spare.
int Keeps(const ModeForecast& forecast, const LatencyLeft& left) {
  const absl::Duration ttft = absl::Microseconds(forecast.ttft_us), itl = absl::Microseconds(forecast.itl_us);
  if (ttft > left.ttft || itl > left.itl) return 0;
  if (forecast.full_steps && left.itl < absl::InfiniteDuration()) return 1;
  return ttft <= kRoomyTtft * left.ttft && itl <= kRoomyItl * left.itl ? 2 : 1;
}

// The larger of its times as a share of what is left. A promise that is broken already says nothing of either way.
double Strain(const ModeForecast& forecast, const LatencyLeft& left) {
  const auto share = [](double us, absl::Duration of) {
    return of > absl::ZeroDuration() ? absl::FDivDuration(absl::Microseconds(us), of) : 0;
  };
  return std::max(share(forecast.ttft_us, left.ttft), share(forecast.itl_us, left.itl));
}

}  // namespace

ServingMode ServingModeFrom(absl::string_view name) {
  for (const ServingMode mode : {ServingMode::kDisaggregated, ServingMode::kAggregated}) {
    if (name == Name(mode)) return mode;
  }
  return ServingMode::kAuto;
}

absl::string_view Name(ServingMode mode) {
  switch (mode) {
    case ServingMode::kDisaggregated:
      return "disaggregated";
    case ServingMode::kAggregated:
      return "aggregated";
    case ServingMode::kAuto:
      return "auto";
  }
  return "auto";
}

ModeForecast ForecastRemote(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, const Choice& prefill,
                            const Choice* decode, double transfer_us) {
  const WorkerSnapshot& w = workers[prefill.worker];
  const uint64_t tokens = need.prompt_tokens - prefill.chosen().cached_tokens;
  ModeForecast out;
  out.worker = w.id;
  out.ttft_us = prefill.chosen().ttft_us;
  out.measured = prefill.chosen().measured;
  out.aged = w.cost_aged;
  out.others_us = PrefillUs(w, 0, prefill.chosen().cached_tokens, tokens) * w.in_flight;
  if (decode == nullptr) return out;
  // Chunks move while the next ones are computed.
  const double chunks = w.max_batch_tokens > 0 ? static_cast<double>(tokens) / w.max_batch_tokens : 1;
  out.handover_us = std::max(transfer_us, 0.0) / std::max(chunks, 1.0);
  out.itl_us = StepUs(workers[decode->worker], need.choices, need.prompt_tokens);
  return out;
}

ModeForecast ForecastLocal(std::span<const WorkerSnapshot> workers, const PlacementNeed& need, const Choice& local) {
  const WorkerSnapshot& w = workers[local.worker];
  const StepCost cost = PrefillCostOf(workers, w);
  const uint64_t tokens = need.prompt_tokens - local.chosen().cached_tokens;
  ModeForecast out;
  out.local = true;
  out.worker = w.id;
  out.ttft_us = local.chosen().ttft_us;
  out.measured = local.chosen().measured;
  out.aged = w.cost_aged;
  out.itl_us = StepUs(w, need.choices, need.prompt_tokens);
  if (w.sequences == 0) return out;
  WorkerSnapshot alone = w;
  alone.pending_tokens = 0;
  // The steps that those who decode would have had anyway are no loss.
  const double mixed = LocalPrefillUs(alone, cost, local.chosen().cached_tokens, tokens);
  const double step = MixedStepUs(w, cost, tokens);
  const double plain = StepUs(w, 0, 0);
  const double lost = step > 0 ? mixed * std::max(0.0, 1 - plain / step) : mixed;
  out.others_us = lost * w.sequences;
  out.itl_us = std::max(out.itl_us, step);
  out.full_steps = w.mixed_batch_tokens > 0 && tokens > w.mixed_batch_tokens;
  return out;
}

bool PreferLocal(const ModeForecast& remote, const ModeForecast& local, const LatencyLeft& left) {
  // A prefill worker's time is known from the start; that of prompts on decode workers only by trying.
  if (!local.measured) return false;
  const int remote_keeps = Keeps(remote, left), local_keeps = Keeps(local, left);
  if (remote_keeps != local_keeps) return local_keeps > remote_keeps;
  if (local_keeps == 0) {
    const double local_strain = Strain(local, left), remote_strain = Strain(remote, left);
    if (local_strain != remote_strain) return local_strain < remote_strain;
  }
  return local.total_us() <= remote.total_us();
}

}  // namespace baton::router
