// What tests/bench/router_bench.cc puts around a router: workers that compute nothing, and clients that only read. Both
// live in one process, so that they share a clock.
#ifndef BATON_TESTS_BENCH_ROUTER_LOAD_H_
#define BATON_TESTS_BENCH_ROUTER_LOAD_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/cluster.pb.h"
#include "proto/inference.grpc.pb.h"
#include "proto/worker.grpc.pb.h"

namespace baton::bench {

inline constexpr int kAnswerTokens = 1024;

// When each token of each client's latest answer left its worker, in nanoseconds. Thread-safe.
class SendTimes {
 public:
  explicit SendTimes(int clients) : at_(static_cast<size_t>(clients) * kAnswerTokens) {}
  void Set(int client, uint32_t token, int64_t ns) { Slot(client, token).store(ns, std::memory_order_relaxed); }
  int64_t Get(int client, uint32_t token) { return Slot(client, token).load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>& Slot(int client, uint32_t token) {
    return at_[(static_cast<size_t>(client) * kAnswerTokens + token % kAnswerTokens) % at_.size()];
  }
  std::vector<std::atomic<int64_t>> at_;
};

// How the workers' steps follow one another.
struct Pace {
  // 0: the next step as soon as the transport has taken nearly all of the last ones.
  double tokens_per_second = 0;  // over all sequences of all workers
};

// Decode workers that compute prompts too; one thread steps all of them. Thread-safe.
class IdleWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<IdleWorkers>> Start(int workers, SendTimes* times);
  ~IdleWorkers();
  std::vector<v1::WorkerInfo> infos() const;
  void SetPace(const Pace& pace);

 private:
  class Service;
  struct Worker;
  IdleWorkers() = default;
  void Run();

  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<double> rate_{0};
  std::atomic<bool> stop_{false};
  std::thread stepper_;
};

// What one measurement saw.
struct Seen {
  uint64_t tokens = 0;
  uint64_t messages = 0;  // that carried tokens
  uint64_t answers = 0;
  uint64_t failures = 0;  // streams, and tokens out of order
  std::string failure;    // the first one's
  std::vector<float> latency_ms;
};

// `clients` streams that are asked for again when they end, over a few connections. Thread-safe.
class Readers {
 public:
  Readers(const std::string& router, const std::vector<std::string>& workers, int clients, int connections,
          SendTimes* times);
  ~Readers();  // cancels and waits
  // `tokens_per_message`: what the clients allow (GenerateRequest.tokens_per_message). 0: they ask the workers, without
  // the router.
  void Start(int tokens_per_message);
  void Stop();
  Seen Take();  // since the last Take

 private:
  class Stream;
  template <class Request, class Response>
  class StreamOf;
  void Again(int client);
  void Began(int client, Stream* stream);
  void OnEvent(int client, const v1::GenerateResponse& event);
  void OnEvent(int client, const v1::DecodeEvent& event);
  void OnTokens(int client, std::span<const uint32_t> indices);

  SendTimes* const times_;
  const int clients_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  std::vector<std::unique_ptr<v1::DecodeWorker::Stub>> worker_stubs_;
  int tokens_per_message_ = 1;
  std::atomic<bool> stop_{false};
  Mutex mu_;
  CondVar cv_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Stream*> running_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> next_ ABSL_GUARDED_BY(mu_);  // token index, by client
  Seen seen_ ABSL_GUARDED_BY(mu_);
};

int64_t NowNs();

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_ROUTER_LOAD_H_
