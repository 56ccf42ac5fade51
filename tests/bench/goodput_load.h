// Load for goodput_bench: requests at Poisson arrivals against one server, and when each token came.
#ifndef BATON_TESTS_BENCH_GOODPUT_LOAD_H_
#define BATON_TESTS_BENCH_GOODPUT_LOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/inference.grpc.pb.h"

namespace baton::bench {

struct Job {
  absl::Duration at;  // after the trial's begin
  int prompt_tokens = 0;
  int output_tokens = 0;
  uint64_t seed = 0;  // of the prompt's token ids
};

// `seconds` of arrivals at `rate` a second, prompts of 128 to 1,024 and answers of 32 to 128 tokens, evenly drawn. The same
// seed gives the same requests at any rate, closer together or further apart.
std::vector<Job> PoissonJobs(double rate, double seconds, uint64_t seed);

// One request, in seconds after it was due.
struct Trace {
  std::vector<double> token_at;
  bool complete = false;  // all tokens came
  double ttft() const { return token_at.empty() ? 1e9 : token_at.front(); }
};

// One server. Thread-safe.
class Target {
 public:
  virtual ~Target() = default;
  // Sends the request and reads until its end or `until`; `on_token`, if given, may end it early by returning false.
  virtual Trace Run(const Job& job, absl::Time due, absl::Time until,
                    const std::function<bool()>& on_token = nullptr) = 0;
};

std::unique_ptr<Target> BatonTarget(const std::string& address, int vocab_size);
// llama-server's own /completion, streamed, without its prompt cache.
std::unique_ptr<Target> LlamaTarget(int port, int vocab_size);

struct Trial {
  std::vector<Trace> traces;
  double seconds = 0;           // from the first arrival to the last token
  double generator_cpu = 0;     // seconds of this process
  double tokens_per_second = 0;
  // Shares of requests whose first token came in time, and of gaps between tokens that were short enough.
  double ttft_met(double limit) const;
  double itl_met(double limit) const;
  double gap_quantile(double q) const;
  double ttft_quantile(double q) const;
};

// Requests that have not ended `grace` after the last arrival are cut off.
Trial RunTrial(Target* target, const std::vector<Job>& jobs, absl::Duration grace);
// `clients` at once, each starting its next request when the last one ended: requests a second.
double MeasureCapacity(Target* target, int clients, absl::Duration duration, uint64_t seed);

double Quantile(std::vector<double> values, double q);

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_GOODPUT_LOAD_H_
