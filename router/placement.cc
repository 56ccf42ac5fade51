#include "router/placement.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "kvcache/prefix_hash.h"

namespace baton::router {
namespace {

constexpr size_t kMaxNames = 4096;  // blocks of a prompt that are compared with the caches
constexpr int kSampleOfMany = 2;
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

}  // namespace

Placement::Placement(ClusterView* view, Clock* clock, const PlacementOptions& options, uint64_t seed)
    : view_(view),
      clock_(clock),
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
      Pick none;
      none.choice = refused;
      Log(request, none, nullptr);
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
  return view_->Ever(Role::kPrefill) && (!request.needs_decode || view_->Ever(Role::kDecode));
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
      absl::StatusOr<PlacedHolds> placed = PlaceLocked(it->second.request);
      if (!placed.ok() && WorthWaiting(it->second.request, placed.status())) {
        it->second.why = placed.status();
        return Admission::Verdict::kNoRoom;
      }
      results.emplace_back(std::move(it->second.done), std::move(placed));
      waiting_.erase(it);
      return Admission::Verdict::kTaken;
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
    for (auto& [id, status] : admission_.Expire(clock_->Now(), why)) {
      const auto it = waiting_.find(id);
      Pick none;
      none.choice = status;
      Log(it->second.request, none, nullptr);
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
  PolicyOptions options = options_;
  options.check_room = false;
  view_->Read([&](std::span<const WorkerSnapshot> workers, const PrefixDirectory& prefixes) {
    for (const WorkerSnapshot& w : workers) {
      if (w.role != Role::kPrefill || w.state != WorkerState::kReady || w.cost.samples == 0) continue;
      const double us_per_token = PrefillUs(w, 0, 0, kForecastTokens) / kForecastTokens;
      if (us_per_token > 0) forecast.tokens_per_second += 1e6 / us_per_token;
    }
    prefixes.Match(request.need.prefix_names, clock_->Now(), &depth_);
    const absl::StatusOr<Choice> prefill = PickPrefill(workers, request.need, depth_, options, seed_);
    if (prefill.ok() && prefill->chosen().measured) {
      forecast.ttft = absl::Microseconds(prefill->chosen().predicted_us);
    }
    if (!request.needs_decode) return;
    const absl::StatusOr<Choice> decode = PickDecode(workers, request.need, nullptr, options, seed_);
    if (decode.ok() && decode->chosen().measured) {
      forecast.itl = absl::Microseconds(
          StepUs(workers[decode->worker], request.need.choices, request.need.prompt_tokens));
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
  return PlaceLocked(request);
}

absl::StatusOr<PlacedHolds> Placement::PlaceLocked(const PlaceRequest& request) {
  PlacedHolds placed;
  const Pick prefill = PickOne(Role::kPrefill, request.need, nullptr);
  if (!prefill.choice.ok()) {
    // Logged when nothing better comes of waiting.
    if (!WorthWaiting(request, prefill.choice.status())) Log(request, prefill, nullptr);
    return prefill.choice.status();
  }
  if (request.needs_decode) {
    // Before any prefill work is spent.
    const Pick decode = PickOne(Role::kDecode, request.need, &prefill.worker.id);
    if (decode.choice.ok() || !WorthWaiting(request, decode.choice.status())) Log(request, prefill, &decode);
    if (!decode.choice.ok()) return decode.choice.status();
    placed.pair.decode = decode.worker;
    placed.decode = InFlightHold(view_, decode.worker.id, decode.work);
  } else {
    Log(request, prefill, nullptr);
  }
  placed.pair.prefill = prefill.worker;
  placed.prefill = InFlightHold(view_, prefill.worker.id, prefill.work);
  view_->ExpectPrefixes(prefill.worker.id, request.need.prefix_names);
  return placed;
}

void Placement::Log(const PlaceRequest& request, const Pick& prefill, const Pick* decode) {
  v1::PlacementDecision decision;
  decision.set_epoch(request.epoch);
  decision.set_policy(std::string(Name(options_.rule)));
  decision.set_waited_ms(absl::ToDoubleMilliseconds(clock_->Now() - request.arrival));
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
