#include "kvtransfer/loopback.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "kvtransfer/receiver.h"

namespace baton::kvtransfer {
namespace {

constexpr char kName[] = "loopback";

// One registered server. `users` are fetches that hold a claim on the exporter; Shutdown waits for them.
struct Entry {
  Mutex mu;
  CondVar idle;
  Exporter* exporter ABSL_GUARDED_BY(mu) = nullptr;  // null once shut down
  int users ABSL_GUARDED_BY(mu) = 0;
};

class Registry {
 public:
  static Registry* Get() {
    static Registry* registry = new Registry();
    return registry;
  }
  void Add(const std::string& incarnation, std::shared_ptr<Entry> entry) {
    MutexLock lock(&mu_);
    entries_[incarnation] = std::move(entry);
  }
  void Remove(const std::string& incarnation) {
    MutexLock lock(&mu_);
    entries_.erase(incarnation);
  }
  std::shared_ptr<Entry> Find(const std::string& incarnation) {
    MutexLock lock(&mu_);
    auto it = entries_.find(incarnation);
    return it == entries_.end() ? nullptr : it->second;
  }

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
};

class LoopbackServer : public TransportServer {
 public:
  explicit LoopbackServer(Exporter* exporter) : entry_(std::make_shared<Entry>()) {
    {
      MutexLock lock(&entry_->mu);
      entry_->exporter = exporter;
    }
    endpoint_.set_worker_name(exporter->options().worker_name);
    endpoint_.set_incarnation(exporter->options().incarnation);
    endpoint_.set_transport(kName);
    Registry::Get()->Add(endpoint_.incarnation(), entry_);
    exporter->AddEndpoint(endpoint_);
  }
  ~LoopbackServer() override { Shutdown(); }
  v1::Endpoint endpoint() const override { return endpoint_; }
  void Shutdown() override {
    Registry::Get()->Remove(endpoint_.incarnation());
    MutexLock lock(&entry_->mu);
    entry_->exporter = nullptr;
    while (entry_->users > 0) entry_->idle.Wait(&entry_->mu);
  }

 private:
  const std::shared_ptr<Entry> entry_;
  v1::Endpoint endpoint_;
};

// Holds a server's exporter in place while a fetch uses it.
class ExporterUse {
 public:
  explicit ExporterUse(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {
    if (entry_ == nullptr) return;
    MutexLock lock(&entry_->mu);
    exporter_ = entry_->exporter;
    if (exporter_ != nullptr) ++entry_->users;
  }
  ~ExporterUse() {
    if (exporter_ == nullptr) return;
    MutexLock lock(&entry_->mu);
    if (--entry_->users == 0) entry_->idle.SignalAll();
  }
  ExporterUse(const ExporterUse&) = delete;
  ExporterUse& operator=(const ExporterUse&) = delete;
  Exporter* get() const { return exporter_; }
  bool gone() {
    MutexLock lock(&entry_->mu);
    return entry_->exporter == nullptr;
  }

 private:
  const std::shared_ptr<Entry> entry_;
  Exporter* exporter_ = nullptr;
};

// One thread copies for all fetches, one block of each in turn.
class LoopbackClient : public TransportClient {
 public:
  LoopbackClient(ReceiverOptions receiver, const std::atomic<double>* bytes_per_second)
      : receiver_(std::move(receiver)), bytes_per_second_(bytes_per_second), thread_([this] { Loop(); }) {}
  ~LoopbackClient() override { Shutdown(); }
  absl::string_view name() const override { return kName; }

  FetchId Fetch(FetchRequest request, FetchCallback done) override {
    auto job = std::make_unique<Job>(&receiver_, std::move(request), std::move(done));
    FetchId id = 0;
    {
      MutexLock lock(&mu_);
      id = ++last_id_;
      if (!stopping_) {
        arrived_.emplace(id, std::move(job));
        woken_ = true;
        wake_.SignalAll();
        return id;
      }
    }
    job->done(absl::CancelledError("the transport is shut down"), std::move(job->reception.destination()));
    return id;
  }

  void Cancel(FetchId id) override {
    MutexLock lock(&mu_);
    cancelled_.insert(id);
    woken_ = true;
    wake_.SignalAll();
  }

  void Shutdown() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      wake_.SignalAll();
    }
    MutexLock join(&join_mu_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  // The order is the reverse of that of destruction: the claim ends before its exporter may go.
  struct Job {
    Job(const ReceiverOptions* options, FetchRequest request, FetchCallback done)
        : reception(options, kName, std::move(request)), done(std::move(done)) {}
    Reception reception;
    FetchCallback done;
    std::optional<ExporterUse> use;
    Claim claim;
    absl::Time arrives = absl::InfiniteFuture();  // the next block, once it is under way
  };
  using Jobs = std::map<FetchId, std::unique_ptr<Job>>;

  void Loop() {
    Jobs jobs;
    for (;;) {
      std::set<FetchId> cancelled;
      bool stopping = false;
      bool idle = true;
      for (auto it = jobs.begin(); it != jobs.end();) {
        const bool moved = Step(it->second.get());
        idle = idle && !moved;
        it = it->second->done ? std::next(it) : jobs.erase(it);
      }
      {
        MutexLock lock(&mu_);
        // A deadline, a server's end and a heartbeat need a look now and then.
        if (idle && !woken_ && !stopping_) {
          const absl::Duration pause = std::clamp(link_free_ - absl::Now(), absl::ZeroDuration(), absl::Milliseconds(5));
          jobs.empty() ? wake_.Wait(&mu_)
                       : (void)wake_.WaitWithTimeout(&mu_, pause > absl::ZeroDuration() ? pause : absl::Milliseconds(5));
        }
        woken_ = false;
        stopping = stopping_;
        jobs.merge(arrived_);
        cancelled.swap(cancelled_);
      }
      for (auto& [id, job] : jobs) {
        if (stopping) End(job.get(), absl::CancelledError("the transport is shut down"));
        else if (cancelled.count(id) > 0) End(job.get(), absl::CancelledError("the fetch was cancelled"));
      }
      std::erase_if(jobs, [](const auto& entry) { return !entry.second->done; });
      if (stopping) return;
    }
  }

  // Ends the claim, then tells; `job->done` is null afterwards.
  static void End(Job* job, absl::StatusOr<FetchResult> result) {
    if (job->claim) job->claim.Finish(result.ok() ? ClaimEnd::kDelivered : ClaimEnd::kStopped);
    job->use.reset();
    FetchCallback done = std::move(job->done);
    job->done = nullptr;
    done(std::move(result), std::move(job->reception.destination()));
  }

  // Moves one block, or ends the job; false: nothing to do now.
  bool Step(Job* job) {
    absl::StatusOr<bool> moved = Advance(job);
    if (!moved.ok()) {
      End(job, moved.status());
      return true;
    }
    if (!job->reception.complete()) return *moved;
    End(job, job->reception.Result("memcpy"));
    return true;
  }

  absl::Status Open(Job* job) {
    if (absl::Status s = job->reception.Check(); !s.ok()) return s;
    job->use.emplace(Registry::Get()->Find(job->reception.endpoint().incarnation()));
    if (job->use->get() == nullptr) {
      return absl::UnavailableError(absl::StrCat("worker ", job->reception.endpoint().worker_name(),
                                                 " is gone from this process; prefill again"));
    }
    absl::StatusOr<Claim> claim = job->use->get()->ClaimTicket(job->reception.Open());
    if (!claim.ok()) return claim.status();
    job->claim = *std::move(claim);
    job->claim.SetWake([this] {
      MutexLock lock(&mu_);
      woken_ = true;
      wake_.SignalAll();
    });
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(Job* job) {
    if (absl::Now() >= job->reception.deadline()) {
      return absl::DeadlineExceededError("the deadline passed during the KV fetch");
    }
    if (!job->claim) {
      if (absl::Status s = Open(job); !s.ok()) return s;
    }
    Claim& claim = job->claim;
    if (job->use->gone()) return absl::UnavailableError("the exporting worker shut down during the KV fetch");
    claim.Renew();
    if (claim.HasBlock()) {
      if (!Arrived(job, claim.bytes(claim.next_block()).size())) return false;
      const std::span<const std::byte> from = claim.bytes(claim.next_block());
      const v1::BlockSeal seal = claim.MakeSeal();
      absl::StatusOr<std::span<std::byte>> to = job->reception.Place(seal, from.size());
      if (!to.ok()) return to.status();
      std::memcpy(to->data(), from.data(), from.size());
      if (absl::Status s = job->reception.Arrived(seal.block_idx()); !s.ok()) return s;
      return true;
    }
    if (!claim.Done() && !claim.stop_requested()) return false;
    if (absl::Status s = job->reception.TakeEnd(claim.MakeEnd()); !s.ok()) return s;
    return true;
  }

  // False: on the slowed link the job's next block has not arrived yet.
  bool Arrived(Job* job, size_t bytes) {
    const double rate = bytes_per_second_ == nullptr ? 0 : bytes_per_second_->load();
    if (rate <= 0) return true;
    const absl::Time now = absl::Now();
    if (job->arrives == absl::InfiniteFuture()) {
      // This thread may look a little late; the link has not waited for it.
      link_free_ = std::max(link_free_, now - absl::Milliseconds(10)) + absl::Seconds(static_cast<double>(bytes) / rate);
      job->arrives = link_free_;
    }
    if (now < job->arrives) return false;
    job->arrives = absl::InfiniteFuture();
    return true;
  }

  const ReceiverOptions receiver_;
  const std::atomic<double>* const bytes_per_second_;
  absl::Time link_free_ = absl::InfinitePast();  // the loop's
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  FetchId last_id_ ABSL_GUARDED_BY(mu_) = 0;
  Jobs arrived_ ABSL_GUARDED_BY(mu_);
  std::set<FetchId> cancelled_ ABSL_GUARDED_BY(mu_);
  Mutex join_mu_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<TransportServer> MakeLoopbackServer(Exporter* exporter) {
  return std::make_unique<LoopbackServer>(exporter);
}

std::unique_ptr<TransportClient> MakeLoopbackClient(ReceiverOptions options,
                                                    const std::atomic<double>* bytes_per_second) {
  return std::make_unique<LoopbackClient>(std::move(options), bytes_per_second);
}

}  // namespace baton::kvtransfer
