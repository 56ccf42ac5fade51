// The router's counters and histograms. Names are documented by their help texts; labels are bounded.
//
// Thread contract: thread-safe.
#ifndef BATON_ROUTER_ROUTER_METRICS_H_
#define BATON_ROUTER_ROUTER_METRICS_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "common/metrics.h"
#include "router/admission.h"
#include "router/request_lifecycle.h"

namespace baton::router {

class RouterMetrics {
 public:
  // `metrics` is not owned and outlives this.
  RouterMetrics(Metrics* metrics, std::string model_name, const std::string& fingerprint);

  void Started() {
    running_.Increment();
    vllm_running_.Increment();
  }
  // One request ended. `emit`: from a token's arrival to its hand-over to the transport, summed over tokens.
  void Ended(const absl::Status& status, const RequestStats& stats, absl::Duration emit);
  // One placement: from asking to the answer.
  void Waited(absl::Duration waited) { router_queue_.Observe(absl::ToDoubleSeconds(waited)); }
  // Whether the request got what its class was promised, by length of its prompt (goodput; "unknown" where it was refused
  // before it was tokenized). The client's own cancellations are not judged, nor are requests that were wrong.
  void Judged(const absl::Status& status, const RequestStats& stats, const Promise& promise);
  void Retried(const absl::Status& why);
  void WorkerRefused() { refused_.Increment(); }
  // Requests that ended otherwise than OK, the client's own cancellations not counted.
  uint64_t requests_failed() const { return failed_; }

 private:
  prometheus::Counter& Retries(absl::StatusCode why);
  prometheus::Histogram& Station(const char* station);
  prometheus::Histogram& Latency(const std::string& name, const std::string& help);

  Metrics* const metrics_;
  std::atomic<uint64_t> failed_{0};
  const MetricLabels vllm_labels_;
  prometheus::Gauge& running_;
  prometheus::Gauge& vllm_running_;
  prometheus::Counter& refused_;
  prometheus::Histogram& tokenize_;
  prometheus::Histogram& prefill_;
  prometheus::Histogram& emit_;
  prometheus::Histogram& stop_;
  prometheus::Histogram& router_queue_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& decode_queue_;
  prometheus::Histogram& ttft_;
  prometheus::Histogram& itl_;
  prometheus::Histogram& total_;
  prometheus::Histogram& vllm_ttft_;
  prometheus::Histogram& vllm_itl_;
  prometheus::Histogram& vllm_e2e_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& cached_tokens_;
  prometheus::Counter& generated_tokens_;
  prometheus::Counter& vllm_prompt_tokens_;
  prometheus::Counter& vllm_generation_tokens_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_METRICS_H_
