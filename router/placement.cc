#include "router/placement.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "kvcache/prefix_hash.h"

namespace baton::router {
namespace {

constexpr size_t kMaxNames = 4096;  // blocks of a prompt that are compared with the caches
constexpr int kSampleOfMany = 2;
constexpr double kAsLikelyAsNot = 0.5;
constexpr uint64_t kForecastTokens = 1024;  // the length of prompt that a worker's speed is taken at

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

v1::ModeForecast ToProto(const ModeForecast& forecast) {
  v1::ModeForecast out;
  out.set_mode(forecast.local ? "local" : "remote");
  out.set_worker(forecast.worker.name);
  out.set_ttft_ms(forecast.ttft_us / 1000);
  out.set_itl_ms(forecast.itl_us / 1000);
  out.set_others_ms((forecast.others_us + forecast.handover_us) / 1000);
  if (!forecast.measured) out.set_note("its step cost is not known yet");
  return out;
}

}  // namespace

Placement::Placement(ClusterView* view, Clock* clock, const PlacementOptions& options, uint64_t seed)
    : view_(view),
      clock_(clock),
      mode_(options.mode),
      promises_(options.admission.promises),
      admission_(options.admission),
      options_(options.policy),
      seed_(seed) {}

void Placement::Ask(uint64_t id, PlaceRequest request, Done done) {
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    const absl::Time now = clock_->Now();
    Applicant applicant;
    applicant.id = id;
    applicant.tenant = request.tenant;
    applicant.priority = request.priority;
    applicant.prompt_tokens = request.need.prompt_tokens;
    applicant.output_tokens = request.need.output_tokens * request.need.choices;
    applicant.arrival = request.arrival;
    applicant.deadline = request.deadline;
    if (request.epoch <= 1) {
      refused = admission_.Arrive(applicant, ForecastFor(request), now);
    } else {
      admission_.WaitAgain(applicant, now);
    }
    if (refused.ok()) {
      waiting_[id] = Waiting{std::move(request), std::move(done), absl::UnavailableError("it was not offered yet")};
    } else {
      Ways none;
      none.status = refused;
      Log(request, none);
    }
  }
  if (!refused.ok()) return done(std::move(refused));
  Changed();
}

void Placement::Leave(uint64_t id) {
  Waiting gone;  // what its callback holds goes without the lock
  MutexLock lock(&mu_);
  admission_.Leave(id);
  const auto it = waiting_.find(id);
  if (it == waiting_.end()) return;
  gone = std::move(it->second);
  waiting_.erase(it);
}

bool Placement::WorthWaiting(const PlaceRequest& request, const absl::Status& status) const {
  if (absl::IsResourceExhausted(status)) return true;
  if (!absl::IsUnavailable(status) || request.need.only_others) return false;
  const bool local = mode_ != ServingMode::kDisaggregated && view_->Ever(Role::kDecode);
  return local || (view_->Ever(Role::kPrefill) && (!request.needs_decode || view_->Ever(Role::kDecode)));
}

void Placement::Changed() {
  MutexLock lock(&mu_);
  again_ = true;
  if (offering_) return;
  offering_ = true;
  while (again_) {
    again_ = false;
    std::vector<std::pair<Done, absl::StatusOr<PlacedHolds>>> results;
    admission_.Offer(clock_->Now(), [&](uint64_t id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const auto it = waiting_.find(id);
      const PlaceRequest& request = it->second.request;
      Ways ways = Compare(request, /*check_room=*/true);
      if (!ways.status.ok() && WorthWaiting(request, ways.status)) {
        it->second.why = ways.status;
        return Admission::Verdict::kNoRoom;
      }
      // Work on what comes too late would make those behind it late as well.
      const absl::Status late = CheckPromise(request, ways);
      if (!late.ok()) ways.status = late;
      results.emplace_back(std::move(it->second.done), Hold(request, ways));
      waiting_.erase(it);
      return late.ok() ? Admission::Verdict::kTaken : Admission::Verdict::kLate;
    });
    mu_.Unlock();
    for (auto& [done, result] : results) done(std::move(result));
    results.clear();
    mu_.Lock();
  }
  offering_ = false;
}

void Placement::Tick() {
  std::vector<std::pair<Done, absl::Status>> ended;
  {
    MutexLock lock(&mu_);
    const auto why = [&](uint64_t id) ABSL_NO_THREAD_SAFETY_ANALYSIS { return waiting_.at(id).why; };
    const auto least = [&](uint64_t id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return absl::Microseconds(Compare(waiting_.at(id).request, /*check_room=*/false).least_us);
    };
    for (auto& [id, status] : admission_.Expire(clock_->Now(), why, least)) {
      const auto it = waiting_.find(id);
      Ways none;
      none.status = status;
      Log(it->second.request, none);
      ended.emplace_back(std::move(it->second.done), std::move(status));
      waiting_.erase(it);
    }
  }
  for (auto& [done, status] : ended) done(std::move(status));
  Changed();
}

QueueState Placement::queue() const {
  MutexLock lock(&mu_);
  QueueState state;
  state.tokens = admission_.queued_tokens();
  for (size_t i = 0; i < kNumPriorities; ++i) state.requests[i] = admission_.queued(static_cast<Priority>(i));
  return state;
}

Forecast Placement::ForecastFor(const PlaceRequest& request) {
  Forecast forecast;
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory&) {
    for (const WorkerSnapshot& w : workers) {
      if (request.needs_decode && w.role == Role::kDecode && w.state == WorkerState::kReady) {
        forecast.room_per_second += FinishedPerSecond(w, request.need) * static_cast<double>(request.need.prompt_tokens);
      }
      const bool prefills = w.role == Role::kPrefill ? mode_ != ServingMode::kAggregated
                                                     : mode_ != ServingMode::kDisaggregated;
      if (!prefills || w.state != WorkerState::kReady) continue;
      const StepCost cost = w.role == Role::kPrefill ? w.cost : PrefillCostOf(workers, w);
      if (cost.samples == 0 && w.prefill_cost.samples == 0) continue;
      const double us = w.role == Role::kPrefill ? PrefillUs(w, 0, 0, kForecastTokens)
                                                 : LocalPrefillUs(w, cost, 0, kForecastTokens);
      if (us > 0) forecast.tokens_per_second += 1e6 * kForecastTokens / us;
    }
  });
  const Ways ways = Compare(request, /*check_room=*/false);
  forecast.least = absl::Microseconds(ways.least_us);
  const std::optional<ModeForecast>& taken = ways.take_local ? ways.local_forecast : ways.remote_forecast;
  if (!taken.has_value()) return forecast;
  if (taken->measured && !taken->aged) forecast.ttft = absl::Microseconds(taken->ttft_us);
  const Pick& decode = ways.take_local ? ways.local : ways.decode;
  if (!request.needs_decode || !decode.choice.ok()) return forecast;
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory&) {
    // Of steps that only decode: those that also carry a chunk are few, or what keeps to step_target.
    for (const WorkerSnapshot& w : workers) {
      if (w.id != decode.worker.id || w.cost.samples == 0 || w.cost_aged) continue;
      forecast.itl = absl::Microseconds(StepUs(w, request.need.choices, request.need.prompt_tokens));
    }
  });
  return forecast;
}

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

LatencyLeft Placement::LeftOf(const PlaceRequest& request) const {
  const Promise& promised = promise(request.priority);
  const absl::Time now = clock_->Now();
  return {std::min(promised.ttft - (now - request.arrival), request.deadline - now), promised.itl};
}

void Placement::CompareRemote(std::span<const WorkerSnapshot> workers, const PlaceRequest& request,
                              const PolicyOptions& options, uint64_t seed, Ways* ways) {
  const PlacementNeed& need = request.need;
  ways->prefill.choice = PickPrefill(workers, need, depth_, options, seed);
  if (!ways->prefill.choice.ok()) return;
  const WorkerSnapshot& prefill = workers[ways->prefill.choice->worker];
  ways->prefill.worker = {prefill.id, prefill.address};
  double transfer_us = 0;
  if (request.needs_decode) {
    const absl::Time now = clock_->Now();
    const auto transfer = [&](const WorkerSnapshot& w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (pairs_.Bad(prefill.key, w.key, now)) return -1.0;
      return pairs_.EstimateUs(prefill.key, w.key,
                               (need.prompt_tokens / std::max<uint32_t>(w.block_size, 1) + 1) * w.block_bytes);
    };
    ways->decode.choice = PickDecode(workers, need, transfer, options, seed);
    if (!ways->decode.choice.ok()) return;
    const WorkerSnapshot& decode = workers[ways->decode.choice->worker];
    ways->decode.worker = {decode.id, decode.address};
    ways->decode.blocks = need.Blocks(decode.block_size);
    transfer_us = transfer(decode);
  }
  ways->remote_forecast = ForecastRemote(workers, need, *ways->prefill.choice,
                                         request.needs_decode ? &*ways->decode.choice : nullptr, transfer_us);
}

Placement::Ways Placement::Compare(const PlaceRequest& request, bool check_room) {
  Ways ways;
  PolicyOptions options = options_;
  options.check_room = options.check_room && check_room;
  const uint64_t seed = check_room ? seed_++ : seed_;  // what is only looked at takes nobody's turn
  const LatencyLeft left = LeftOf(request);
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory& prefixes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    prefixes.Match(request.need.prefix_names, clock_->Now(), &depth_);
    if (!check_room) {
      ways.least_us = LeastTtftUs(workers, request.need, depth_, mode_ != ServingMode::kAggregated,
                                  mode_ != ServingMode::kDisaggregated);
    }
    if (mode_ != ServingMode::kAggregated) CompareRemote(workers, request, options, seed, &ways);
    if (mode_ != ServingMode::kDisaggregated) {
      ways.local.choice = PickLocal(workers, request.need, depth_, options, seed);
    }
    if (ways.local.choice.ok()) {
      const WorkerSnapshot& w = workers[ways.local.choice->worker];
      ways.local.worker = {w.id, w.address};
      ways.local.blocks = request.need.Blocks(w.block_size);
      ways.local_forecast = ForecastLocal(workers, request.need, *ways.local.choice);
    }
    const absl::Status& remote =
        ways.prefill.choice.ok() && request.needs_decode ? ways.decode.choice.status() : ways.prefill.choice.status();
    ways.status = remote;
    ways.take_local = mode_ == ServingMode::kAggregated;
    if (mode_ == ServingMode::kAuto) {
      // Waiting for a prefill worker that is full may be better than what is there now.
      std::optional<ModeForecast> remote_soon = ways.remote_forecast;
      if (!remote_soon.has_value() && absl::IsResourceExhausted(remote) && ways.local_forecast.has_value()) {
        Ways soon;
        PolicyOptions patient = options;
        patient.check_room = false;
        CompareRemote(workers, request, patient, seed, &soon);
        remote_soon = soon.remote_forecast;
      }
      ways.take_local = ways.local_forecast.has_value() &&
                        (!remote_soon.has_value() || PreferLocal(*remote_soon, *ways.local_forecast, left));
    }
    if (ways.take_local) ways.status = ways.local.choice.status();
    // Where no way is open: that one has no room now says more than that the other has no workers.
    if (!ways.status.ok() && absl::IsResourceExhausted(ways.local.choice.status())) ways.status = ways.local.choice.status();
  });
  return ways;
}

absl::StatusOr<PlacedHolds> Placement::Place(const PlaceRequest& request) {
  MutexLock lock(&mu_);
  const Ways ways = Compare(request, /*check_room=*/true);
  // Failures are logged when nothing better comes of waiting.
  if (!ways.status.ok() && WorthWaiting(request, ways.status)) return ways.status;
  return Hold(request, ways);
}

absl::Status Placement::CheckPromise(const PlaceRequest& request, const Ways& ways) const {
  const std::optional<ModeForecast>& taken = ways.take_local ? ways.local_forecast : ways.remote_forecast;
  if (!ways.status.ok() || request.epoch > 1 || !taken.has_value() || !taken->measured || taken->aged) {
    return absl::OkStatus();
  }
  const absl::Time now = clock_->Now();
  const absl::Duration more = absl::Microseconds(taken->ttft_us) + admission_.Lateness(kAsLikelyAsNot, now);
  return CheckInTime(promise(request.priority), request.arrival, request.deadline, more, now);
}

absl::StatusOr<PlacedHolds> Placement::Hold(const PlaceRequest& request, const Ways& ways) {
  Log(request, ways);
  if (!ways.status.ok()) return ways.status;
  const PlacementNeed& need = request.need;
  PlacedHolds placed;
  // Decode room first, before any prefill work is spent.
  if (ways.take_local || request.needs_decode) {
    const Pick& decode = ways.take_local ? ways.local : ways.decode;
    placed.pair.decode = decode.worker;
    placed.decode = InFlightHold(view_, decode.worker.id, {0, need.choices, decode.blocks});
  }
  const std::optional<ModeForecast>& forecast = ways.take_local ? ways.local_forecast : ways.remote_forecast;
  if (forecast.has_value() && forecast->measured) placed.ttft = absl::Microseconds(forecast->ttft_us);
  const Pick& prefill = ways.take_local ? ways.local : ways.prefill;
  if (!ways.take_local) placed.pair.prefill = prefill.worker;
  placed.prefill = InFlightHold(view_, prefill.worker.id,
                                {need.prompt_tokens - prefill.choice->chosen().cached_tokens,
                                 ways.take_local ? 0u : 1u, 0, ways.take_local ? 0u : 1u});
  view_->ExpectPrefixes(prefill.worker.id, need.prefix_names);
  return placed;
}

void Placement::Log(const PlaceRequest& request, const Ways& ways) {
  v1::PlacementDecision decision;
  decision.set_epoch(request.epoch);
  decision.set_policy(std::string(Name(options_.rule)));
  decision.set_waited_ms(absl::ToDoubleMilliseconds(clock_->Now() - request.arrival));
  decision.set_prompt_tokens(request.need.prompt_tokens);
  const std::optional<ModeForecast>& taken = ways.take_local ? ways.local_forecast : ways.remote_forecast;
  const std::optional<ModeForecast>& other = ways.take_local ? ways.remote_forecast : ways.local_forecast;
  for (const auto* forecast : {&taken, &other}) {
    if (forecast->has_value()) *decision.add_modes() = ToProto(**forecast);
  }
  if (!ways.status.ok()) decision.set_error(std::string(ways.status.message()));
  if (!ways.take_local && ways.prefill.choice.ok()) {
    decision.set_prefill_considered(ways.prefill.choice->considered);
    for (const Candidate& c : ways.prefill.choice->candidates) *decision.add_prefill() = ToProto(c);
  }
  const Pick& decode = ways.take_local ? ways.local : ways.decode;
  if (decode.choice.ok()) {
    decision.set_decode_considered(decode.choice->considered);
    for (const Candidate& c : decode.choice->candidates) *decision.add_decode() = ToProto(c);
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

void Placement::ReportFirstToken(absl::Duration forecast, absl::Duration took) {
  MutexLock lock(&mu_);
  if (forecast > absl::ZeroDuration()) admission_.NoteFirstToken(forecast, took, clock_->Now());
}

absl::StatusOr<v1::PlacementExplanation> Placement::Explain(const std::string& request_id) const {
  return log_.Find(request_id, clock_->Now());
}

void Placement::SetRouters(int routers) {
  MutexLock lock(&mu_);
  options_.sample = routers > 1 ? kSampleOfMany : 0;
}

}  // namespace baton::router
