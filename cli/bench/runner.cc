#include "cli/bench/runner.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status.h"

namespace baton::bench {
namespace {

constexpr absl::Duration kReportEvery = absl::Milliseconds(250);
constexpr size_t kMaxLiveSamples = 4096;

int64_t MonotonicNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

double CpuSeconds() {
  rusage usage;
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// FNV-1a, of numbers in little-endian order.
uint64_t HashInto(uint64_t hash, uint64_t value) {
  for (int i = 0; i < 8; ++i) {
    hash = (hash ^ (value >> (8 * i) & 0xFF)) * 0x100000001B3;
  }
  return hash;
}

}  // namespace

// One request. Deletes itself when the call is over.
class Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(Runner* runner, v1::GenerateRequest request, RequestRecord record)
      : runner_(runner), request_(std::move(request)), record_(std::move(record)) {
    record_.token_s.reserve(static_cast<size_t>(std::clamp(request_.sampling().max_tokens(), 1, 4096)));
    record_.output_hash = HashInto(0xCBF29CE484222325, record_.index);
  }

  void Start(v1::Inference::Stub* stub, absl::Duration timeout) {
    if (timeout != absl::InfiniteDuration()) rpc::SetDeadline(&context_, absl::Now() + timeout);
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void Cancel() {
    abandoned_ = true;
    context_.TryCancel();
  }
  RequestRecord& record() { return record_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const double now = runner_->Elapsed();
    if (event_.has_token()) {
      const bool first = record_.token_s.empty();
      runner_->OnToken((now - (first ? record_.intended_s : record_.token_s.back())) * 1e3, first);
      record_.token_s.push_back(now);
      record_.output_hash = HashInto(record_.output_hash, static_cast<uint64_t>(event_.token().token_id()));
    } else if (event_.has_finished()) {
      finished_ = true;
      record_.end_s = now;
    } else if (event_.has_summary()) {
      const v1::Summary& summary = event_.summary();
      record_.prompt_tokens = summary.usage().prompt_tokens();
      record_.cached_tokens = summary.usage().cached_tokens();
      record_.kv_bytes = summary.kv().bytes();
      record_.transfer_ms = summary.timings().transfer_ms();
    }
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Status converted = FromGrpcStatus(status);
    record_.code = converted.code();
    record_.error = std::string(converted.message());
    record_.abandoned = abandoned_ && !(converted.ok() && finished_);
    if (converted.ok() && (!finished_ || record_.token_s.empty())) {
      record_.code = absl::StatusCode::kInternal;
      record_.error = "the stream ended without an answer";
    }
    if (!finished_) record_.end_s = runner_->Elapsed();
    // The context, and with it what gRPC has of the call, goes before the runner may hear of the end: when that was the last
    // request the process may be over at once.
    Runner* const runner = runner_;
    RequestRecord record = std::move(record_);
    runner->Forget(this);
    delete this;
    runner->OnDone(std::move(record));
  }

 private:
  Runner* const runner_;
  grpc::ClientContext context_;
  const v1::GenerateRequest request_;
  v1::GenerateResponse event_;
  RequestRecord record_;
  bool finished_ = false;
  std::atomic<bool> abandoned_{false};
};

Runner::Runner(std::shared_ptr<grpc::Channel> channel, const Workload* workload, Load load,
               std::function<void(const Progress&)> on_progress)
    : channel_(std::move(channel)),
      stub_(v1::Inference::NewStub(channel_)),
      workload_(workload),
      load_(std::move(load)),
      on_progress_(std::move(on_progress)) {}

Runner::~Runner() = default;

double Runner::Elapsed() const { return static_cast<double>(MonotonicNs() - start_ns_) / 1e9; }

v1::GenerateRequest Runner::MakeRequest(uint64_t index) const {
  v1::GenerateRequest request;
  workload_->Fill(load_.first_index + index, &request);
  v1::SamplingParams* sampling = request.mutable_sampling();
  sampling->set_temperature(load_.temperature);
  sampling->set_seed(HashInto(HashInto(0xCBF29CE484222325, load_.seed), load_.first_index + index));
  sampling->set_ignore_eos(load_.ignore_eos);
  return request;
}

bool Runner::AllSent(double now) {
  if (interrupted_) return true;
  if (!load_.starts_s.empty()) return sent_ == load_.starts_s.size();
  return (load_.num_requests > 0 && sent_ >= load_.num_requests) || (load_.max_seconds > 0 && now >= load_.max_seconds);
}

void Runner::Send(v1::GenerateRequest request, double intended_s) {
  RequestRecord record;
  record.index = load_.first_index + sent_;
  record.sent_s = Elapsed();
  record.intended_s = load_.starts_s.empty() ? record.sent_s : intended_s;
  auto* call = new Call(this, std::move(request), std::move(record));
  {
    MutexLock lock(&mu_);
    ++sent_;
    running_.insert(call);
    // Interrupted in between: it is cancelled before it starts, and ends as CANCELLED.
    if (interrupted_) call->Cancel();
  }
  call->Start(stub_.get(), load_.timeout);
}

void Runner::OnToken(double latency_ms, bool first) {
  MutexLock lock(&mu_);
  ++progress_.tokens;
  std::vector<double>& samples = first ? progress_.ttft_ms : progress_.itl_ms;
  if (samples.size() < kMaxLiveSamples) samples.push_back(latency_ms);
}

void Runner::Forget(Call* call) {
  MutexLock lock(&mu_);
  running_.erase(call);
  ++ending_;
}

void Runner::OnDone(RequestRecord record) {
  MutexLock lock(&mu_);
  --ending_;
  if (!record.abandoned) ++(record.ok() ? progress_.done : progress_.failed);
  records_.push_back(std::move(record));
  // Under the lock: Run returns, and the runner ends, only after this thread has let go of it.
  changed_.Signal();
}

void Runner::Interrupt() {
  MutexLock lock(&mu_);
  interrupted_ = true;
  for (Call* call : running_) call->Cancel();
  changed_.Signal();
}

RunOutcome Runner::Run() {
  const double cpu_before = CpuSeconds();
  start_ns_ = MonotonicNs();
  double next_report = absl::ToDoubleSeconds(kReportEvery);
  std::optional<v1::GenerateRequest> next;  // made ahead, so that making it delays nothing
  while (true) {
    uint64_t index;
    {
      MutexLock lock(&mu_);
      if (AllSent(Elapsed())) {
        if (running_.empty() && ending_ == 0) break;
        next.reset();
      }
      index = sent_;
    }
    const double now = Elapsed();
    if (now >= next_report) {
      Report();
      next_report = now + absl::ToDoubleSeconds(kReportEvery);
    }
    bool send = false;
    double intended = 0;
    {
      MutexLock lock(&mu_);
      const bool more = !AllSent(now);
      if (more && !load_.starts_s.empty()) intended = load_.starts_s[index];
      const bool room = load_.max_in_flight == 0 || running_.size() + ending_ < load_.max_in_flight;
      send = more && room && intended <= now && next.has_value();
      if (!send && (!more || next.has_value())) {
        const double until = more && room ? std::min(intended, next_report) : next_report;
        changed_.WaitWithTimeout(&mu_, absl::Seconds(std::clamp(until - now, 0.0, 0.25)));
        continue;
      }
    }
    if (send) {
      Send(*std::move(next), intended);
      next.reset();
    } else {
      next = MakeRequest(index);
    }
  }
  RunOutcome outcome;
  outcome.duration_s = Elapsed();
  outcome.cpu_s = CpuSeconds() - cpu_before;
  Report();
  MutexLock lock(&mu_);
  outcome.interrupted = interrupted_;
  outcome.records = std::move(records_);
  std::sort(outcome.records.begin(), outcome.records.end(),
            [](const RequestRecord& a, const RequestRecord& b) { return a.index < b.index; });
  return outcome;
}

void Runner::Report() {
  if (!on_progress_) return;
  Progress progress;
  {
    MutexLock lock(&mu_);
    progress = progress_;
    progress_.ttft_ms.clear();
    progress_.itl_ms.clear();
    progress.in_flight = running_.size() + ending_;
  }
  progress.elapsed_s = Elapsed();
  on_progress_(progress);
}

}  // namespace baton::bench
