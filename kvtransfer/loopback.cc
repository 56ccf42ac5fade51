#include "kvtransfer/loopback.h"

#include <cstring>
#include <deque>
#include <map>
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
    exporter->SetEndpoint(endpoint_);
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

class LoopbackClient : public TransportClient {
 public:
  explicit LoopbackClient(ReceiverOptions receiver)
      : receiver_(std::move(receiver)), thread_([this] { Loop(); }) {}
  ~LoopbackClient() override { Shutdown(); }
  absl::string_view name() const override { return kName; }

  FetchId Fetch(v1::Ticket ticket, kvcache::BlockLease destination, absl::Time deadline, FetchCallback done) override {
    Job job{0, std::move(ticket), std::move(destination), deadline, absl::Now(), std::move(done)};
    FetchId id = 0;
    {
      MutexLock lock(&mu_);
      id = job.id = ++last_id_;
      if (!stopping_) {
        pending_.insert(id);
        jobs_.push_back(std::move(job));
        wake_.Signal();
        return id;
      }
    }
    job.done(absl::CancelledError("the transport is shut down"), std::move(job.destination));
    return id;
  }

  void Cancel(FetchId id) override {
    MutexLock lock(&mu_);
    if (pending_.count(id) > 0) cancelled_.insert(id);
  }

  void Shutdown() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      wake_.Signal();
    }
    MutexLock lock(&join_mu_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Job {
    FetchId id;
    v1::Ticket ticket;
    kvcache::BlockLease destination;
    absl::Time deadline;
    absl::Time started;
    FetchCallback done;
  };

  void Loop() {
    for (;;) {
      Job job;
      {
        MutexLock lock(&mu_);
        while (jobs_.empty() && !stopping_) wake_.Wait(&mu_);
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      absl::StatusOr<FetchStats> result = Run(job);
      {
        MutexLock lock(&mu_);
        pending_.erase(job.id);
        cancelled_.erase(job.id);
      }
      job.done(std::move(result), std::move(job.destination));
    }
  }

  absl::Status Interrupted(const Job& job) {
    MutexLock lock(&mu_);
    if (stopping_ || cancelled_.count(job.id) > 0) return absl::CancelledError("the fetch was cancelled");
    if (absl::Now() >= job.deadline) return absl::DeadlineExceededError("the deadline passed during the KV fetch");
    return absl::OkStatus();
  }

  absl::StatusOr<FetchStats> Run(Job& job) {
    if (absl::Status s = CheckFetch(receiver_, kName, job.ticket, job.destination); !s.ok()) return s;
    if (absl::Status s = Interrupted(job); !s.ok()) return s;
    ExporterUse use(Registry::Get()->Find(job.ticket.endpoint().incarnation()));
    if (use.get() == nullptr) {
      return absl::UnavailableError(absl::StrCat("prefill worker ", job.ticket.endpoint().worker_name(),
                                                 " is gone from this process; prefill again"));
    }
    absl::StatusOr<Claim> claim = use.get()->ClaimTicket(job.ticket);
    if (!claim.ok()) return claim.status();
    FetchStats stats;
    for (size_t i = 0; i < claim->num_blocks(); ++i) {
      absl::Status s = Interrupted(job);
      if (s.ok() && use.gone()) s = absl::UnavailableError("the prefill worker shut down during the KV fetch");
      if (s.ok()) s = claim->CheckStillValid();
      const std::span<const std::byte> from = claim->bytes(i);
      const std::span<std::byte> to = job.destination.bytes(i);
      const v1::BlockSlot& slot = claim->slot(i);
      if (s.ok()) s = CheckBlockHeader(job.ticket, {i, slot.generation(), slot.checksum()}, from.size(), to.size());
      if (!s.ok()) return s;
      std::memcpy(to.data(), from.data(), from.size());
      s = CheckBlockBytes(job.ticket, i, to);
      if (!s.ok()) return s;
      stats.bytes += from.size();
      ++stats.blocks;
    }
    if (absl::Status s = claim->CheckStillValid(); !s.ok()) return s;
    claim->Finish(/*all_sent=*/true);
    stats.duration = absl::Now() - job.started;
    stats.transport = kName;
    stats.detail = "memcpy";
    return stats;
  }

  const ReceiverOptions receiver_;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  FetchId last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::set<FetchId> pending_ ABSL_GUARDED_BY(mu_);
  std::set<FetchId> cancelled_ ABSL_GUARDED_BY(mu_);
  Mutex join_mu_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<TransportServer> MakeLoopbackServer(Exporter* exporter) {
  return std::make_unique<LoopbackServer>(exporter);
}

std::unique_ptr<TransportClient> MakeLoopbackClient(ReceiverOptions options) {
  return std::make_unique<LoopbackClient>(std::move(options));
}

}  // namespace baton::kvtransfer
