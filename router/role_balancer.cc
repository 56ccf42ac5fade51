#include "router/role_balancer.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_format.h"

namespace baton::router {
namespace {

bool Counts(const WorkerSnapshot& worker) { return worker.state == WorkerState::kReady && !worker.suspect; }

// Of the pool's workers the one whose leaving costs least: with the fewest requests, then by name.
const WorkerSnapshot* Cheapest(std::span<const WorkerSnapshot> workers, Role role) {
  const WorkerSnapshot* best = nullptr;
  const auto cost = [](const WorkerSnapshot& w) { return std::tuple(w.in_flight, w.sequences, w.id); };
  for (const WorkerSnapshot& w : workers) {
    if (w.role != role || !Counts(w) || !w.changes_role) continue;
    if (best == nullptr || cost(w) < cost(*best)) best = &w;
  }
  return best;
}

}  // namespace

PoolLoads LoadsOf(std::span<const WorkerSnapshot> workers, uint64_t queued_tokens) {
  PoolLoads loads;
  double pending = 0, us_per_token = 0;
  uint64_t blocks = 0, taken = 0, places = 0, sequences = 0;
  int measured = 0;
  for (const WorkerSnapshot& w : workers) {
    if (!Counts(w)) continue;
    if (w.role == Role::kPrefill) {
      ++loads.prefill;
      pending += static_cast<double>(w.pending_tokens);
      const StepCost& cost = w.prefill_cost.samples > 0 ? w.prefill_cost : w.cost;
      if (cost.samples == 0) continue;
      ++measured;
      us_per_token += cost.per_row_us;
    } else {
      ++loads.decode;
      blocks += w.total_blocks;
      taken += std::max(w.promised_blocks, w.total_blocks - std::min(w.free_blocks, w.total_blocks));
      places += w.max_sequences;
      sequences += w.sequences;
    }
  }
  if (blocks > 0) {
    loads.fullness = static_cast<double>(taken) / static_cast<double>(blocks);
    if (places > 0) loads.fullness = std::max(loads.fullness, static_cast<double>(sequences) / static_cast<double>(places));
  }
  if (measured > 0) {
    pending += static_cast<double>(queued_tokens);
    loads.backlog_s = pending * (us_per_token / measured) / 1e6 / loads.prefill;
  }
  return loads;
}

std::optional<Role> RoleBalancer::Wanted(const PoolLoads& loads) const {
  if (loads.backlog_s < 0 || loads.fullness < 0) return std::nullopt;
  const double limit = absl::ToDoubleSeconds(options_.backlog);
  const bool prefill_suffers = loads.backlog_s > limit, decode_suffers = loads.fullness > options_.fullness;
  // Where both suffer no change helps: the cluster is too small.
  if (prefill_suffers == decode_suffers) return std::nullopt;
  const Role from = prefill_suffers ? Role::kDecode : Role::kPrefill;
  const int have = from == Role::kDecode ? loads.decode : loads.prefill;
  if (have < 2) return std::nullopt;
  // What the pool that gives would be left with.
  const double after = static_cast<double>(have) / (have - 1);
  const bool spares = from == Role::kDecode ? loads.fullness * after < options_.fullness * options_.spare
                                            : loads.backlog_s * after < limit * options_.spare;
  return spares ? std::optional(from) : std::nullopt;
}

bool RoleBalancer::UnderWay(std::span<const WorkerSnapshot> workers, absl::Time now) {
  if (!pending_.has_value()) return false;
  const bool back = std::any_of(workers.begin(), workers.end(), [&](const WorkerSnapshot& w) {
    return w.id.name == pending_->worker.name && w.role != pending_->from && Counts(w);
  });
  if (!back && now - pending_since_ < options_.give_up) return true;
  pending_.reset();
  not_before_ = now + options_.sustain;
  return false;
}

std::optional<RoleChange> RoleBalancer::Tick(std::span<const WorkerSnapshot> workers, uint64_t queued_tokens,
                                             absl::Time now) {
  const PoolLoads loads = LoadsOf(workers, queued_tokens);
  const std::optional<Role> wanted = UnderWay(workers, now) ? std::nullopt : Wanted(loads);
  if (wanted != wanted_) {
    wanted_ = wanted;
    since_ = now;
  }
  if (!wanted.has_value() || now - since_ < options_.sustain || now < not_before_) return std::nullopt;
  const WorkerSnapshot* worker = Cheapest(workers, *wanted);
  if (worker == nullptr) return std::nullopt;
  pending_since_ = now;
  pending_ = {worker->id, *wanted, worker->address,
              *wanted == Role::kDecode
                  ? absl::StrFormat("prompts have waited %.1f s and more for %d prefill workers, while %d decode workers "
                                    "are %.0f %% full",
                                    loads.backlog_s, loads.prefill, loads.decode, loads.fullness * 100)
                  : absl::StrFormat("%d decode workers are %.0f %% full, while %d prefill workers have %.1f s of work",
                                    loads.decode, loads.fullness * 100, loads.prefill, loads.backlog_s)};
  return pending_;
}

void RoleBalancer::Refused(absl::Time now) {
  pending_.reset();
  not_before_ = now + options_.sustain;
}

}  // namespace baton::router
