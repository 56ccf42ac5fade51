// Load for tests of faults: requests of a tiny model, the answers of an undisturbed cluster, and clients that send the
// requests over and over while the cluster is disturbed and compare every stream with its answer.
#ifndef BATON_TESTS_CHAOS_CLIENTS_H_
#define BATON_TESTS_CHAOS_CLIENTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {

// Long enough to be caught in the middle; some end by a stop string all the same.
v1::GenerateRequest LongRequest(uint64_t seed, int vocab_size);

struct Workload {
  std::vector<v1::GenerateRequest> requests;
  std::vector<Generation> want;  // undisturbed
};

// `number` LongRequests of the tiny model, and what `cluster` answers now; the test fails when it does not.
Workload MakeWorkload(Cluster* cluster, uint64_t seed, int number);

// Path of a tiny random model in the test's folder, whose vocabulary has 280 tokens.
std::string TinyModel();

// Streams that differ from the undisturbed ones, or fail, fail the test. Thread-safe, but Stop and the destructor.
class Clients {
 public:
  // Neither is owned; both outlive this. Starts at once.
  Clients(Cluster* cluster, const Workload* load, int number);
  ~Clients() { Stop(); }
  void Stop();
  // Until clients have got that many more tokens, or 20 s (a fault may have stopped all of it for a while).
  void WaitForTokens(int64_t more) const;
  int completed() const { return completed_; }
  // Requests whose last attempt ran there.
  int ServedBy(const std::string& worker);
  // The longest that any stream stood still since it was last asked: from its start to its first token, or between two.
  absl::Duration TakeWorstStall();

 private:
  // One client's stream that is under way: since when it is waiting for its next token.
  struct Waiting {
    Mutex mu;
    absl::Time since ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  };
  void Run(int number);
  void NoteStall(absl::Duration stall);

  Cluster* const cluster_;
  const Workload* const load_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> tokens_{0}, worst_stall_us_{0};
  std::atomic<int> completed_{0};
  Mutex mu_;
  std::map<std::string, int> served_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Waiting>> waiting_;
  std::vector<std::thread> threads_;
};

// "p50 A ms, p99 B ms, worst C ms" of stalls, and how many there were.
std::string Percentiles(std::vector<absl::Duration> stalls);

}  // namespace baton::e2e

#endif  // BATON_TESTS_CHAOS_CLIENTS_H_
