#include "router/placement.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "kvcache/prefix_hash.h"

namespace baton::router {
namespace {

constexpr size_t kMaxNames = 4096;  // blocks of a prompt that are compared with the caches
constexpr int kSampleOfMany = 2;

uint64_t KeyOf(const WorkerId& id) { return absl::HashOf(id.name, id.incarnation); }

v1::PlacementCandidate ToProto(const Candidate& c) {
  v1::PlacementCandidate out;
  out.set_worker(c.id.name);
  out.set_predicted_ms(c.predicted_us / 1000);
  out.set_queue_tokens(c.queue_tokens);
  out.set_cached_tokens(c.cached_tokens);
  out.set_sequences(c.sequences);
  out.set_free_blocks(c.free_blocks);
  if (!c.measured) out.set_note("its step cost is not known yet");
  return out;
}

}  // namespace

Placement::Placement(ClusterView* view, Clock* clock, const PolicyOptions& options, uint64_t seed)
    : view_(view), clock_(clock), options_(options), seed_(seed) {}

std::vector<uint64_t> Placement::PrefixNames(absl::string_view tenant,
                                             std::span<const int32_t> prompt_token_ids) const {
  int block_size = 0;
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory& prefixes) {
    if (!workers.empty()) block_size = static_cast<int>(workers.front().block_size);  // of all: they are compatible
  });
  std::vector<uint64_t> names;
  for (const auto& hash : kvcache::PrefixHashes(tenant, prompt_token_ids, block_size, kMaxNames)) {
    names.push_back(hash.Low64());
  }
  return names;
}

Placement::Pick Placement::PickOne(Role role, const PlacementNeed& need, const WorkerId* prefill) {
  Pick pick;
  const uint64_t seed = seed_++;
  const absl::Time now = clock_->Now();
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory& prefixes) {
    if (role == Role::kPrefill) {
      prefixes.Match(need.prefix_names, now, &depth_);
      pick.choice = PickPrefill(workers, need, depth_, options_, seed);
    } else {
      const uint64_t from = prefill != nullptr ? KeyOf(*prefill) : 0;
      const auto transfer = [&](const WorkerSnapshot& w) {
        if (pairs_.Bad(from, w.key, now)) return -1.0;
        return pairs_.EstimateUs(from, w.key, (need.prompt_tokens / std::max<uint32_t>(w.block_size, 1) + 1) * w.block_bytes);
      };
      pick.choice = PickDecode(workers, need, transfer, options_, seed);
    }
    if (!pick.choice.ok()) return;
    const WorkerSnapshot& w = workers[pick.choice->worker];
    pick.worker = {w.id, w.address};
    if (role == Role::kPrefill) {
      pick.work = {need.prompt_tokens - pick.choice->chosen().cached_tokens, 1, 0};
    } else {
      pick.work = {0, need.choices, need.Blocks(w.block_size)};
    }
  });
  return pick;
}

absl::StatusOr<PlacedHolds> Placement::Place(const PlaceRequest& request) {
  MutexLock lock(&mu_);
  PlacedHolds placed;
  const Pick prefill = PickOne(Role::kPrefill, request.need, nullptr);
  if (!request.needs_decode || !prefill.choice.ok()) {
    Log(request, prefill, nullptr);
    if (!prefill.choice.ok()) return prefill.choice.status();
  } else {
    // Before any prefill work is spent.
    const Pick decode = PickOne(Role::kDecode, request.need, &prefill.worker.id);
    Log(request, prefill, &decode);
    if (!decode.choice.ok()) return decode.choice.status();
    placed.pair.decode = decode.worker;
    placed.decode = InFlightHold(view_, decode.worker.id, decode.work);
  }
  placed.pair.prefill = prefill.worker;
  placed.prefill = InFlightHold(view_, prefill.worker.id, prefill.work);
  view_->ExpectPrefixes(prefill.worker.id, request.need.prefix_names);
  return placed;
}

absl::StatusOr<std::pair<WorkerRef, InFlightHold>> Placement::KeepDecode(const WorkerRef& preferred,
                                                                         const PlacementNeed& need) {
  MutexLock lock(&mu_);
  bool ready = false;
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory& prefixes) {
    ready = std::any_of(workers.begin(), workers.end(), [&](const WorkerSnapshot& w) {
      return w.state == WorkerState::kReady && !w.suspect && w.id == preferred.id;
    });
  });
  if (ready) return std::pair(preferred, InFlightHold());
  Pick decode = PickOne(Role::kDecode, need, nullptr);
  if (!decode.choice.ok()) return decode.choice.status();
  return std::pair(decode.worker, InFlightHold(view_, decode.worker.id, decode.work));
}

void Placement::Log(const PlaceRequest& request, const Pick& prefill, const Pick* decode) {
  v1::PlacementDecision decision;
  decision.set_epoch(request.epoch);
  decision.set_policy(std::string(Name(options_.rule)));
  decision.set_waited_ms(absl::ToDoubleMilliseconds(request.waited));
  decision.set_prompt_tokens(request.need.prompt_tokens);
  if (prefill.choice.ok()) {
    decision.set_prefill_considered(prefill.choice->considered);
    for (const Candidate& c : prefill.choice->candidates) *decision.add_prefill() = ToProto(c);
  } else {
    decision.set_error(std::string(prefill.choice.status().message()));
  }
  if (decode != nullptr && decode->choice.ok()) {
    decision.set_decode_considered(decode->choice->considered);
    for (const Candidate& c : decode->choice->candidates) *decision.add_decode() = ToProto(c);
  } else if (decode != nullptr) {
    decision.set_error(std::string(decode->choice.status().message()));
  }
  log_.Add(request.request_id, std::move(decision), clock_->Now());
}

void Placement::ReportFailure(const WorkerId& id, const absl::Status& status) {
  // What a worker answers, it answers: only a call that found nobody says something about the worker itself.
  if (absl::IsUnavailable(status)) view_->ReportUnreachable(id);
}

void Placement::ReportTransfer(const WorkerId& prefill, const WorkerId& decode, uint64_t bytes,
                               absl::Duration duration) {
  MutexLock lock(&mu_);
  pairs_.Measured(KeyOf(prefill), KeyOf(decode), bytes, duration);
}

void Placement::ReportTransferFailed(const WorkerId& prefill, const WorkerId& decode) {
  MutexLock lock(&mu_);
  pairs_.Failed(KeyOf(prefill), KeyOf(decode), clock_->Now());
}

absl::StatusOr<v1::PlacementExplanation> Placement::Explain(const std::string& request_id) const {
  return log_.Find(request_id, clock_->Now());
}

void Placement::SetRouters(int routers) {
  MutexLock lock(&mu_);
  options_.sample = routers > 1 ? kSampleOfMany : 0;
}

}  // namespace baton::router
