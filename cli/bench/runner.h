// Sends the requests of a load test and notes when what comes back.
//
// Open load: each request is sent at its intended time whatever became of the others. Closed load: so many are in
// flight at any time. Both keep to `max_in_flight`; an open load that has to wait for it counts the wait as latency.
#ifndef BATON_CLI_BENCH_RUNNER_H_
#define BATON_CLI_BENCH_RUNNER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "cli/bench/record.h"
#include "cli/bench/workload.h"
#include "common/mutex.h"
#include "proto/inference.grpc.pb.h"

namespace baton::bench {

struct Load {
  std::vector<double> starts_s;  // open: intended starts, ascending; empty: a closed loop
  uint64_t num_requests = 0;     // closed; 0: until the time is over
  double max_seconds = 0;        // closed: nothing is sent after this; 0: no limit
  uint64_t max_in_flight = 0;    // 0: no limit
  uint64_t first_index = 0;      // of the workload, so that a warm-up does not use the measured prompts
  absl::Duration timeout = absl::InfiniteDuration();  // of a request
  float temperature = 0;
  uint64_t seed = 0;
  bool ignore_eos = true;
};

// For the live line; the vectors hold what arrived since the last one, bounded.
struct Progress {
  double elapsed_s = 0;
  uint64_t done = 0, failed = 0, in_flight = 0, tokens = 0;
  std::vector<double> ttft_ms, itl_ms;
};

struct RunOutcome {
  std::vector<RequestRecord> records;  // by index
  double duration_s = 0;
  double cpu_s = 0;  // of this process, user and system
  bool interrupted = false;
};

class Call;

// Thread contract: Run is called once; Interrupt from any thread.
class Runner {
 public:
  // `workload` outlives the runner. `on_progress` is called on the thread of Run, a few times a second.
  Runner(std::shared_ptr<grpc::Channel> channel, const Workload* workload, Load load,
         std::function<void(const Progress&)> on_progress);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Blocks until every request sent has ended.
  RunOutcome Run();
  // Sends nothing more and cancels what is in flight; Run returns with what there is.
  void Interrupt();

 private:
  friend class Call;
  double Elapsed() const;
  v1::GenerateRequest MakeRequest(uint64_t index) const;
  bool AllSent(double now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(v1::GenerateRequest request, double intended_s);
  void OnToken(double latency_ms, bool first);
  // A call that is over: first it is not to be cancelled any more, then, when it is gone, its record.
  void Forget(Call* call);
  void OnDone(RequestRecord record);
  void Report();

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  const Workload* const workload_;
  const Load load_;
  const std::function<void(const Progress&)> on_progress_;
  int64_t start_ns_ = 0;

  Mutex mu_;
  CondVar changed_;
  uint64_t sent_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<Call*> running_ ABSL_GUARDED_BY(mu_);
  size_t ending_ ABSL_GUARDED_BY(mu_) = 0;  // forgotten, and not yet gone
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mu_);
  Progress progress_ ABSL_GUARDED_BY(mu_);
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_RUNNER_H_
