#include "router/admission.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(4);            // of busy time
constexpr absl::Duration kMinWindow = absl::Milliseconds(300);
constexpr absl::Duration kForgetAfter = absl::Seconds(10);      // without a queue: the workers may be others by then
// What is promised must hold although the forecast is a mean.
constexpr double kMargin = 1.1;
// Under overload the queue is always as long as the forecast lets it be, so that every wait is near the limit: then how
// wrong forecasts were of late decides how many are refused late.
constexpr double kMaxMargin = 2;
constexpr size_t kErrors = 64, kMinErrors = 8;
constexpr absl::Duration kLatenessAge = absl::Seconds(5);
constexpr double kSurely = 0.9;  // share of first tokens that shall come in time
constexpr absl::Duration kShortestJudged = absl::Milliseconds(50);
constexpr absl::Duration kMinRetry = absl::Milliseconds(100);
constexpr absl::Duration kMaxRetry = absl::Seconds(60);

int64_t Ms(absl::Duration d) { return absl::ToInt64Milliseconds(d); }

absl::Status Refuse(std::string message, absl::string_view reason, absl::Duration retry) {
  retry = std::clamp(retry, kMinRetry, kMaxRetry);
  return WithReason(WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(message, "; try again in ", Ms(retry),
                                                                             " ms")),
                                   retry),
                    reason);
}

}  // namespace

absl::string_view Name(Priority priority) {
  switch (priority) {
    case Priority::kHigh:
      return "high";
    case Priority::kStandard:
      return "standard";
    case Priority::kBatch:
      return "batch";
  }
  return "standard";
}

absl::Status CheckInTime(const Promise& promised, absl::Time arrival, absl::Time deadline, absl::Duration more,
                         absl::Time now) {
  const absl::Duration waited = now - arrival, allowed = deadline - arrival;
  if (waited + more <= std::min(promised.ttft, allowed)) return absl::OkStatus();
  const std::string words =
      absl::StrCat("waited ", Ms(waited), " ms",
                   more > absl::ZeroDuration() ? absl::StrCat(", would take about ", Ms(more), " ms more") : "");
  if (promised.ttft <= allowed) {
    return Refuse(absl::StrCat(words, ", and the first token was promised within ", Ms(promised.ttft), " ms"), "PREDICTED_TTFT",
                  absl::Seconds(1));
  }
  return WithReason(
      WithRetryAfter(absl::DeadlineExceededError(absl::StrCat(
                         words, ", and the request's deadline is ", Ms(allowed), " ms after its arrival; give it more time")),
                     absl::Seconds(1)),
      "PREDICTED_TTFT");
}

Admission::Key Admission::KeyOf(const Applicant& a) const {
  return {a.arrival + options_.patience[static_cast<size_t>(a.priority)], a.id};
}

Admission::Tenant* Admission::TenantOf(const std::string& name, absl::Time now) {
  if (tenants_.size() >= options_.max_tenants && tenants_.count(name) == 0) {
    auto oldest = tenants_.end();
    for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
      if (it->second.running == 0 && (oldest == tenants_.end() || it->second.filled < oldest->second.filled)) oldest = it;
    }
    if (oldest != tenants_.end()) tenants_.erase(oldest);
  }
  const auto [it, fresh] = tenants_.try_emplace(name);
  Tenant& tenant = it->second;
  if (fresh) {
    tenant.requests = options_.requests_per_minute;
    tenant.tokens = options_.tokens_per_minute;
  } else {
    const double minutes = std::max(0.0, absl::ToDoubleMinutes(now - tenant.filled));
    tenant.requests = std::min(options_.requests_per_minute, tenant.requests + minutes * options_.requests_per_minute);
    tenant.tokens = std::min(options_.tokens_per_minute, tenant.tokens + minutes * options_.tokens_per_minute);
  }
  tenant.filled = now;
  return &tenant;
}

absl::Status Admission::CheckTenant(const Applicant& a, Tenant* tenant) const {
  if (options_.concurrent > 0 && tenant->running >= options_.concurrent) {
    return Refuse(absl::StrCat("this tenant has ", tenant->running, " requests in flight, which is its limit"),
                  "TENANT_CONCURRENCY", absl::Seconds(1));
  }
  if (options_.requests_per_minute > 0 && tenant->requests < 1) {
    return Refuse(absl::StrCat("this tenant may send ", options_.requests_per_minute, " requests a minute"),
                  "TENANT_RATE", absl::Minutes((1 - tenant->requests) / options_.requests_per_minute));
  }
  // A request above a whole minute's worth would never pass; it passes when the bucket is full.
  const double tokens = std::min(static_cast<double>(a.prompt_tokens + a.output_tokens), options_.tokens_per_minute);
  if (options_.tokens_per_minute > 0 && tenant->tokens < tokens) {
    return Refuse(absl::StrCat("this tenant may use ", options_.tokens_per_minute, " tokens a minute"), "TENANT_RATE",
                  absl::Minutes((tokens - tenant->tokens) / options_.tokens_per_minute));
  }
  return absl::OkStatus();
}

absl::Duration Admission::WaitBefore(const Key& key, const Forecast& forecast, absl::Time now) const {
  uint64_t ahead = 0;
  for (const auto& [other, waiter] : queue_) {
    if (other >= key) break;
    ahead += waiter.applicant.prompt_tokens;
  }
  double rate = forecast.tokens_per_second;
  // As long as the queue has not shown how fast it moves, what is expected of answers says it.
  const double measured = MeasuredRate(now), moves = measured > 0 ? measured : forecast.room_per_second;
  if (moves > 0 && (rate <= 0 || moves < rate)) rate = moves;
  if (ahead == 0 || rate <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(ahead) / rate);
}

double Admission::WaitMargin() const {
  if (errors_.size() < kMinErrors) return kMargin;
  std::vector<double> sorted(errors_.begin(), errors_.end());
  const auto ninth = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() * 9 / 10);
  std::nth_element(sorted.begin(), ninth, sorted.end());
  return std::clamp(*ninth, kMargin, kMaxMargin);
}

void Admission::NoteWait(absl::Duration forecast, absl::Duration waited) {
  if (forecast < kShortestJudged) return;
  errors_.push_back(absl::FDivDuration(waited, forecast));
  if (errors_.size() > kErrors) errors_.pop_front();
}

void Admission::NoteFirstToken(absl::Duration forecast, absl::Duration took, absl::Time now) {
  lateness_.emplace_back(now, std::max(absl::ZeroDuration(), took - forecast));
  if (lateness_.size() > kErrors) lateness_.pop_front();
}

absl::Duration Admission::Lateness(double share, absl::Time now) const {
  // Nobody may be refused for what was long ago: it would never be put right.
  std::vector<absl::Duration> sorted;
  for (const auto& [at, late] : lateness_) {
    if (now - at <= kLatenessAge) sorted.push_back(late);
  }
  if (sorted.size() < kMinErrors) return absl::ZeroDuration();
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

absl::Status Admission::CheckForecast(const Applicant& a, const Forecast& forecast, absl::Duration wait,
                                      absl::Time now) const {
  const Promise& promised = promise(a.priority);
  if (forecast.itl > promised.itl) {
    return Refuse(absl::StrCat("the decode workers are too busy: tokens would come every ", Ms(forecast.itl),
                               " ms, and ", Ms(promised.itl), " ms are promised"),
                  "PREDICTED_ITL", absl::Seconds(1));
  }
  const absl::Duration ttft = WaitMargin() * wait + kMargin * forecast.ttft + Lateness(kSurely, now);
  const absl::Duration left = std::min(promised.ttft, a.deadline - a.arrival) - (now - a.arrival);
  if (ttft <= left) return absl::OkStatus();
  const std::string words = absl::StrCat("the first token would take about ", Ms(ttft), " ms, and ", Ms(left));
  if (promised.ttft <= a.deadline - a.arrival) {
    return Refuse(absl::StrCat(words, " ms are promised"), "PREDICTED_TTFT", ttft - left);
  }
  return WithReason(WithRetryAfter(absl::DeadlineExceededError(absl::StrCat(
                                       words, " ms are left of the request's deadline; give it more time")),
                                   std::clamp(ttft - left, kMinRetry, kMaxRetry)),
                    "PREDICTED_TTFT");
}

absl::Status Admission::Arrive(const Applicant& a, const Forecast& forecast, absl::Time now) {
  if (now >= a.deadline) return absl::DeadlineExceededError("the request's deadline had passed when it arrived");
  Tenant* tenant = TenantOf(a.tenant, now);
  if (absl::Status status = CheckTenant(a, tenant); !status.ok()) return status;
  // An empty queue takes any request.
  if (!queue_.empty() && queued_tokens_ + a.prompt_tokens > options_.max_queued_tokens) {
    const absl::Duration wait = WaitBefore({absl::InfiniteFuture(), 0}, forecast, now);
    return Refuse(absl::StrCat(queued_tokens_, " prompt tokens wait, of ", options_.max_queued_tokens,
                               " that may (max_queue_tokens)"),
                  "QUEUE_FULL", std::max(wait / 4, absl::Seconds(1)));
  }
  const absl::Duration wait = WaitBefore(KeyOf(a), forecast, now);
  if (absl::Status status = CheckForecast(a, forecast, wait, now); !status.ok()) return status;
  tenant->requests -= 1;
  tenant->tokens -= static_cast<double>(a.prompt_tokens + a.output_tokens);
  ++tenant->running;
  Enqueue(a, true, wait, forecast.least, now);
  return absl::OkStatus();
}

void Admission::WaitAgain(const Applicant& applicant, absl::Time now) {
  Enqueue(applicant, false, absl::ZeroDuration(), absl::ZeroDuration(), now);
}

void Admission::Enqueue(const Applicant& a, bool first, absl::Duration forecast, absl::Duration least, absl::Time now) {
  Admitted& admitted = admitted_[a.id];
  if (admitted.waiting) return;
  AdvanceBusy(now);
  admitted = {a.tenant, KeyOf(a), true};
  queue_.emplace(admitted.key, Waiter{a, now, first, forecast, least});
  last_queued_ = now;
  queued_tokens_ += a.prompt_tokens;
  ++queued_of_[static_cast<size_t>(a.priority)];
}

void Admission::Dequeue(Admitted* admitted) {
  const auto it = queue_.find(admitted->key);
  queued_tokens_ -= it->second.applicant.prompt_tokens;
  --queued_of_[static_cast<size_t>(it->second.applicant.priority)];
  queue_.erase(it);
  admitted->waiting = false;
}

void Admission::Leave(uint64_t id) {
  const auto it = admitted_.find(id);
  if (it == admitted_.end()) return;
  if (it->second.waiting) Dequeue(&it->second);
  if (const auto tenant = tenants_.find(it->second.tenant); tenant != tenants_.end()) --tenant->second.running;
  admitted_.erase(it);
}

void Admission::AdvanceBusy(absl::Time now) {
  // A router offers every few milliseconds, queue or not.
  if (now - last_queued_ > kForgetAfter) {
    takings_.clear();
    errors_.clear();
    taken_ = 0;
    busy_since_ = busy_;
  } else if (!queue_.empty()) {
    busy_ += now - last_;
  }
  last_ = now;
  if (!queue_.empty()) last_queued_ = now;
  while (!takings_.empty() && takings_.front().at < busy_ - kWindow) {
    taken_ -= takings_.front().tokens;
    takings_.pop_front();
  }
}

double Admission::MeasuredRate(absl::Time now) const {
  const absl::Duration now_busy = busy_ + (queue_.empty() ? absl::ZeroDuration() : now - last_);
  const absl::Duration window = std::min(now_busy - busy_since_, kWindow);
  if (window < kMinWindow) return 0;
  // At least one request a window, the one in front: so a queue that stands still is a slow one, not one that nothing is known
  // of; and one whose prompts take as long as the window is not taken for stuck.
  const uint64_t front = queue_.empty() ? 1 : std::max<uint64_t>(queue_.begin()->second.applicant.prompt_tokens, 1);
  return static_cast<double>(std::max(taken_, front)) / absl::ToDoubleSeconds(window);
}

void Admission::Offer(absl::Time now, absl::FunctionRef<Verdict(uint64_t id)> place) {
  AdvanceBusy(now);
  int overtaken = 0;
  for (auto it = queue_.begin(); it != queue_.end();) {
    const Waiter& waiter = it->second;
    const Key key = it->first;
    const uint64_t id = waiter.applicant.id, tokens = waiter.applicant.prompt_tokens;
    const bool overtakable = now - waiter.since < kOvertakeFor;
    const absl::Duration forecast = waiter.forecast, waited = now - waiter.since;
    const Verdict verdict = place(id);
    if (verdict != Verdict::kNoRoom) {
      // Who did not wait says nothing of how fast the queue moves.
      if (waited > absl::Milliseconds(1)) {
        NoteWait(forecast, waited);
        if (verdict == Verdict::kTaken) {
          takings_.push_back({busy_, tokens});
          taken_ += tokens;
        }
      }
      Dequeue(&admitted_.at(id));
    } else if (!overtakable || ++overtaken > kOvertakers) {
      return;
    }
    it = queue_.upper_bound(key);
  }
}

std::vector<std::pair<uint64_t, absl::Status>> Admission::Expire(absl::Time now,
                                                                 absl::FunctionRef<absl::Status(uint64_t id)> why,
                                                                 absl::FunctionRef<absl::Duration(uint64_t id)> least) {
  std::vector<std::pair<uint64_t, absl::Status>> out;
  for (auto& [key, waiter] : queue_) {
    const Applicant& a = waiter.applicant;
    const absl::Duration waited = now - waiter.since;
    if (now >= a.deadline) {
      out.emplace_back(a.id, absl::DeadlineExceededError(absl::StrCat(
                                 "the request's deadline passed while it waited in the router: ", why(a.id).message())));
    } else if (waited >= options_.max_wait) {
      out.emplace_back(a.id, WithRetryAfter(why(a.id), absl::Seconds(1)));
    } else if (waiter.first) {
      const auto in_time = [&] { return CheckInTime(promise(a.priority), a.arrival, a.deadline, waiter.least, now); };
      if (in_time().ok()) continue;
      // Meanwhile caches may have come to hold more of its prompt, or faster workers have joined.
      waiter.least = least(a.id);
      absl::Status late = in_time();
      if (late.ok()) continue;
      out.emplace_back(a.id, std::move(late));
      NoteWait(waiter.forecast, waited);
    }
  }
  for (const auto& [id, status] : out) Dequeue(&admitted_.at(id));
  return out;
}

}  // namespace baton::router
