// Who may wait, who goes first, who is refused: pure logic over a clock that is passed in. The simulator runs this code.
//
// A request is judged once, on arrival: its tenant's rate and concurrency, the room in the queue (counted in tokens),
// and whether the forecast says that it would miss its deadline or its class's promise. What is admitted waits until a
// pair of workers has room for it, so decode room is promised before prefill work is spent. A request whose worker
// failed waits again, without being judged again, in the place that its arrival gives it.
//
// Order: by arrival plus the class's patience. A higher class so goes before a lower one that came a while earlier, and
// nobody waits for ever behind a class above.
//
// Thread contract: thread-compatible.
#ifndef BATON_ROUTER_ADMISSION_H_
#define BATON_ROUTER_ADMISSION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::router {

enum class Priority { kHigh, kStandard, kBatch };
inline constexpr size_t kNumPriorities = 3;
absl::string_view Name(Priority priority);

struct Promise {
  absl::Duration ttft = absl::InfiniteDuration();
  absl::Duration itl = absl::InfiniteDuration();  // between two tokens
};

struct AdmissionOptions {
  uint64_t max_queued_tokens = 1 << 20;             // of prompts that wait
  absl::Duration max_wait = absl::Seconds(30);      // for room, or for a worker to come back
  std::array<Promise, kNumPriorities> promises;     // by class
  std::array<absl::Duration, kNumPriorities> patience = {absl::ZeroDuration(), absl::Seconds(2), absl::Seconds(20)};
  // Of one tenant; 0: no limit. Rates may be used up to a minute's worth at once.
  double requests_per_minute = 0;
  double tokens_per_minute = 0;  // of prompts and of the output that is expected
  int concurrent = 0;
  size_t max_tenants = 1 << 16;  // remembered; the longest unused are forgotten
};

struct Applicant {
  uint64_t id = 0;
  std::string tenant;
  Priority priority = Priority::kStandard;
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;  // expected, over all choices
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();
};

// What the workers would give this request if it were placed now, and how fast they work. Infinite or 0: not known, and
// then nothing is refused because of it.
struct Forecast {
  absl::Duration ttft = absl::ZeroDuration();  // on the best worker, its own queue included
  absl::Duration itl = absl::ZeroDuration();
  double tokens_per_second = 0;  // that all prefill workers compute
  double room_per_second = 0;    // tokens of prompts for which decode workers that are full come to have room
  absl::Duration least = absl::ZeroDuration();  // until token 0 on an idle worker, whatever it waits for before that
};

// Of one that was admitted and would have its first token `more` from now on. Not OK, with RetryInfo and the reason
// PREDICTED_TTFT: that is beyond the class's promise (RESOURCE_EXHAUSTED) or, where that comes first, beyond its deadline
// (DEADLINE_EXCEEDED).
absl::Status CheckInTime(const Promise& promised, absl::Time arrival, absl::Time deadline, absl::Duration more,
                         absl::Time now);

class Admission {
 public:
  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // OK: it waits now. RESOURCE_EXHAUSTED, with RetryInfo and a reason (TENANT_RATE, TENANT_CONCURRENCY, QUEUE_FULL,
  // PREDICTED_TTFT, PREDICTED_ITL); DEADLINE_EXCEEDED when the deadline has passed, or would before the first token.
  absl::Status Arrive(const Applicant& applicant, const Forecast& forecast, absl::Time now);
  // An admitted one needs workers again.
  void WaitAgain(const Applicant& applicant, absl::Time now);
  // It ended, was cancelled, or is not wanted any more, wherever it was. Unknown ids are ignored.
  void Leave(uint64_t id);

  enum class Verdict {
    kTaken,   // placed, or ended by an error: it does not wait any more
    kNoRoom,  // it waits on
    kLate,    // ended because it would have missed its promise: the forecast of its wait was too low
  };
  // Offers those that wait, in order. When one finds no room the ones behind it are still tried, at most `kOvertakers`
  // of them and only as long as it has not waited for kOvertakeFor: a large request gets its room in the end.
  void Offer(absl::Time now, absl::FunctionRef<Verdict(uint64_t id)> place);
  static constexpr int kOvertakers = 16;
  static constexpr absl::Duration kOvertakeFor = absl::Seconds(1);

  // A request whose first token was forecast to come so long after its placement, and how long it took. What is promised from
  // then on takes into account how wrong such forecasts were of late.
  void NoteFirstToken(absl::Duration forecast, absl::Duration took, absl::Time now);
  // By how much first tokens came later than forecast of late: `share` of them came no later than that. Zero: not known.
  absl::Duration Lateness(double share, absl::Time now) const;

  // Takes out those that have waited too long: beyond max_wait, their deadline, or (of a first wait) so long that their first
  // token cannot come any more within their deadline and what their class was promised. `why(id)` is what they waited for;
  // `least(id)` is Forecast.least as of now, asked only of those that would be late by what was forecast when they arrived.
  std::vector<std::pair<uint64_t, absl::Status>> Expire(absl::Time now, absl::FunctionRef<absl::Status(uint64_t id)> why,
                                                        absl::FunctionRef<absl::Duration(uint64_t id)> least);

  const Promise& promise(Priority priority) const { return options_.promises[static_cast<size_t>(priority)]; }
  uint64_t queued_tokens() const { return queued_tokens_; }
  size_t queued() const { return queue_.size(); }
  size_t queued(Priority priority) const { return queued_of_[static_cast<size_t>(priority)]; }
  size_t tenants() const { return tenants_.size(); }

 private:
  using Key = std::pair<absl::Time, uint64_t>;
  struct Waiter {
    Applicant applicant;
    absl::Time since;
    bool first = true;
    absl::Duration forecast;  // of its wait
    absl::Duration least;     // Forecast.least
  };
  struct Tenant {
    double requests = 0, tokens = 0;  // that may be used now
    absl::Time filled;
    int running = 0;
  };
  struct Admitted {
    std::string tenant;
    Key key;
    bool waiting = false;
  };

  Key KeyOf(const Applicant& applicant) const;
  void Enqueue(const Applicant& applicant, bool first, absl::Duration forecast, absl::Duration least, absl::Time now);
  void Dequeue(Admitted* admitted);
  Tenant* TenantOf(const std::string& name, absl::Time now);
  absl::Status CheckTenant(const Applicant& applicant, Tenant* tenant) const;
  // Until the queue before `key` is worked off. Walks the queue, as Expire does (under the caller's lock): it is never longer
  // than the router's table of requests, max_queue (1,024 by default).
  absl::Duration WaitBefore(const Key& key, const Forecast& forecast, absl::Time now) const;
  absl::Status CheckForecast(const Applicant& applicant, const Forecast& forecast, absl::Duration wait,
                             absl::Time now) const;
  // What a forecast of a wait is multiplied by, so that nine in ten waits are no longer.
  double WaitMargin() const;
  void NoteWait(absl::Duration forecast, absl::Duration waited);
  // Tokens a second that leave the queue while something waits, over the last seconds of such time; 0: not known.
  double MeasuredRate(absl::Time now) const;
  void AdvanceBusy(absl::Time now);

  const AdmissionOptions options_;
  std::map<Key, Waiter> queue_;
  std::unordered_map<uint64_t, Admitted> admitted_;
  std::unordered_map<std::string, Tenant> tenants_;
  uint64_t queued_tokens_ = 0;
  std::array<size_t, kNumPriorities> queued_of_{};

  // How fast the queue really moves: takings by busy time, which passes only while something waits.
  struct Taking {
    absl::Duration at;
    uint64_t tokens;
  };
  std::deque<Taking> takings_;
  uint64_t taken_ = 0;  // the sum of takings_
  absl::Duration busy_;
  absl::Duration busy_since_;  // takings before are not known
  absl::Time last_ = absl::InfinitePast();         // that busy_ was advanced
  absl::Time last_queued_ = absl::InfinitePast();  // that something waited
  std::deque<double> errors_;  // waits by their forecasts, the newest last
  std::deque<std::pair<absl::Time, absl::Duration>> lateness_;  // of first tokens, and when they came; the newest last
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ADMISSION_H_
