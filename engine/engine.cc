// The engine's thread and inbox around EngineCore.
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "engine/engine_core.h"

namespace baton::engine {
namespace {

// What the engine's thread sleeps on. Shared with the pool's release callback, which may outlive the engine.
struct Wakeup {
  Mutex mu;
  CondVar cv;
  bool set ABSL_GUARDED_BY(mu) = false;

  void Set() {
    MutexLock lock(&mu);
    set = true;
    cv.Signal();
  }
  // Until Set (before or during the call) or `timeout`.
  void Wait(absl::Duration timeout) {
    MutexLock lock(&mu);
    while (!set) {
      if (timeout == absl::InfiniteDuration()) {
        cv.Wait(&mu);
      } else if (!cv.WaitWithTimeout(&mu, timeout)) {
        break;
      }
    }
    set = false;
  }
};

class EngineThread : public Engine {
 public:
  EngineThread(const EngineOptions& options, std::unique_ptr<EngineCore> core, Clock* clock)
      : max_queue_(options.max_queue), has_prefix_cache_(options.prefix_cache), clock_(clock), core_(std::move(core)), load_(core_->load()) {
    core_->pool()->SetReleaseCallback([wakeup = wakeup_] { wakeup->Set(); });
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "engine");
  }

  ~EngineThread() override {
    {
      MutexLock lock(&mu_);
      stop_ = true;
    }
    wakeup_->Set();
    thread_.join();
  }

  void Submit(Request request, std::shared_ptr<RequestSink> sink) override {
    PostSubmit(std::move(request), Mode::kComplete, std::move(sink));
  }

  void SubmitPrefill(Request request, std::shared_ptr<RequestSink> sink) override {
    PostSubmit(std::move(request), Mode::kPrefill, std::move(sink));
  }

  void SubmitDecode(Request request, kvcache::BlockLease prompt_kv, std::vector<SampledToken> first_tokens,
                    std::shared_ptr<RequestSink> sink) override {
    // std::function wants a copyable lambda; the lease moves only.
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(prompt_kv));
    Post([this, request = std::move(request), lease, first_tokens = std::move(first_tokens), sink = std::move(sink),
          now = clock_->Now()]() mutable {
      core_->SubmitDecode(std::move(request), std::move(*lease), std::move(first_tokens), std::move(sink), now);
    });
  }

  void ReserveKv(std::string request_id, int num_tokens, absl::Time deadline,
                 std::function<void(absl::StatusOr<kvcache::BlockLease>)> done, PrefixQuery prefix) override {
    if (!QueueHasRoom()) {
      return Post([done = std::move(done), status = QueueFull()]() mutable { done(status); });
    }
    Post([this, request_id = std::move(request_id), num_tokens, deadline, done = std::move(done),
          prefix = std::move(prefix)]() mutable {
      core_->Reserve(std::move(request_id), num_tokens, deadline, std::move(done), std::move(prefix));
    });
  }

  void AdoptPrefix(std::string tenant, std::vector<int32_t> token_ids, kvcache::BlockLease kv) override {
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(kv));
    Post([this, tenant = std::move(tenant), token_ids = std::move(token_ids), lease] {
      core_->AdoptPrefix(tenant, token_ids, std::move(*lease));
    });
  }

  void CopyToHost(kvcache::BlockLease blocks, std::function<void()> done) override {
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(blocks));
    Post([this, lease, done = std::move(done)] { core_->CopyToHost(std::move(*lease), done); });
  }

  void AfterSteps(std::function<void()> then) override {
    auto next = std::make_shared<const std::function<void()>>(std::move(then));
    MutexLock lock(&mu_);
    after_steps_.swap(next);  // what the former one held goes without the lock
  }

  void Cancel(const std::string& request_id) override {
    Post([this, request_id] { core_->Cancel(request_id); });
  }

  void Drain() override {
    Post([this] { core_->Drain(); });
  }

  void Resume() override {
    Post([this] { core_->Resume(); });
  }

  bool Idle() const override {
    {
      MutexLock lock(&mu_);
      if (busy_ || !inbox_.empty() || load_.running > 0 || load_.waiting > 0) return false;
    }
    const kvcache::Ledger ledger = core_->pool()->ledger();
    return ledger.leased == 0 && ledger.quarantined == 0;
  }

  EngineLoad load() const override {
    EngineLoad load;
    {
      MutexLock lock(&mu_);
      load = load_;
      if (!busy_ && load.running == 0) load.tokens_per_second = 0;
    }
    load.ledger = core_->pool()->ledger();
    return load;
  }

  // Without the lock: a thread that stands still may hold it.
  Activity activity() const override { return {turns_, has_work_, absl::Nanoseconds(longest_step_ns_.load())}; }

  kvcache::PrefixJournal::Report prefixes_since(uint64_t version) const override {
    return has_prefix_cache_ ? core_->journal()->Since(version) : kvcache::PrefixJournal::Report();
  }

  kernels::KvLayout kv_layout() const override { return core_->pool()->layout(); }
  std::shared_ptr<kvcache::BlockPool> pool() const override { return core_->pool()->shared_from_this(); }

 private:
  using Command = std::function<void()>;

  bool QueueHasRoom() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(inbox_.size()) + load_.waiting < max_queue_;
  }

  absl::Status QueueFull() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: limit ", max_queue_, " waiting requests; try again later"));
  }

  void PostSubmit(Request request, Mode mode, std::shared_ptr<RequestSink> sink) {
    if (!QueueHasRoom()) {
      // The refusal too is told on the engine's thread; the prompt is dropped here, so that a flood stays small.
      RequestStats stats;
      stats.prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
      return Post([sink = std::move(sink), stats, status = QueueFull()] { sink->OnDone(status, stats); });
    }
    Post([this, request = std::move(request), mode, sink = std::move(sink), now = clock_->Now()]() mutable {
      core_->Submit(std::move(request), mode, std::move(sink), now);
    });
  }

  void Post(Command command) {
    {
      MutexLock lock(&mu_);
      inbox_.push_back(std::move(command));
      has_work_ = true;
    }
    wakeup_->Set();
  }

  void Run() {
    bool progress = true;
    for (;;) {
      if (!progress) wakeup_->Wait(Patience());
      std::vector<Command> commands;
      bool stop = false;
      {
        MutexLock lock(&mu_);
        commands.swap(inbox_);
        stop = stop_;
        busy_ = true;
      }
      has_work_ = true;
      ++turns_;
      for (Command& command : commands) command();
      const bool had_commands = !commands.empty();
      commands.clear();  // what they own (sinks, leases) goes before the engine may look idle
      if (stop) {
        core_->EndAll(absl::CancelledError("the engine stopped"));
        TellStepped();
        return;
      }
      const absl::Time begin = clock_->Now();
      progress = core_->Step() || had_commands;
      const absl::Duration took = clock_->Now() - begin;
      TellStepped();
      MutexLock lock(&mu_);
      const int64_t steps = load_.steps;
      load_ = core_->load();
      if (load_.steps != steps) {
        longest_step_ns_ = std::max(longest_step_ns_.load(), std::max<int64_t>(1, absl::ToInt64Nanoseconds(took)));
      }
      busy_ = progress && !core_->Quiet();
      has_work_ = busy_ || !inbox_.empty();
    }
  }

  void TellStepped() {
    std::shared_ptr<const std::function<void()>> then;
    {
      MutexLock lock(&mu_);
      then = after_steps_;
    }
    if (then != nullptr && *then) (*then)();
  }

  // How long there is certainly nothing to do. Bounded while anything is open, because a simulated clock does not wake
  // us at a deadline.
  absl::Duration Patience() const {
    if (core_->Quiet()) return absl::InfiniteDuration();
    return std::clamp(core_->NextDeadline() - clock_->Now(), absl::Milliseconds(1), absl::Milliseconds(20));
  }

  const int max_queue_;
  const bool has_prefix_cache_;
  Clock* const clock_;
  const std::unique_ptr<EngineCore> core_;  // the thread's, but for pool() and journal()
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();

  mutable Mutex mu_;
  std::shared_ptr<const std::function<void()>> after_steps_ ABSL_GUARDED_BY(mu_);
  std::vector<Command> inbox_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  EngineLoad load_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> turns_{0};  // of Run
  std::atomic<bool> has_work_{false};
  std::atomic<int64_t> longest_step_ns_{0};
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, model::ModelRunner* runner,
                                                       Clock* clock) {
  auto core = EngineCore::Create(options, runner, clock);
  if (!core.ok()) return core.status();
  return std::unique_ptr<Engine>(new EngineThread(options, *std::move(core), clock));
}

}  // namespace baton::engine
