// The rest of what dashboards and load generators written for vLLM look for, under its names (router_metrics.h has the
// most asked for). Ours are finer; these say the same of the cluster as one engine.
//
// Thread contract: thread-safe. An object only looks its metrics up, so it may be made for one call.
#ifndef BATON_ROUTER_VLLM_METRICS_H_
#define BATON_ROUTER_VLLM_METRICS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics.h"
#include "router/cluster_view.h"
#include "router/request_stats.h"

namespace baton::router {

class VllmMetrics {
 public:
  // `metrics` is not owned and outlives this.
  VllmMetrics(Metrics* metrics, const MetricLabels& labels);

  void Ended(const absl::Status& status, const RequestStats& stats);
  // What workers reported last, and how many requests wait in the router itself.
  void Collect(const std::vector<WorkerSnapshot>& workers, uint64_t queued);

 private:
  prometheus::Histogram& Seconds(const char* name, const char* help);
  prometheus::Counter& Count(const char* name, const char* help);
  prometheus::Histogram& Tokens(const char* name, const char* help);

  Metrics* const metrics_;
  const MetricLabels labels_;
  prometheus::Gauge& waiting_;
  prometheus::Gauge& kv_usage_;
  prometheus::Histogram& per_token_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& prefill_;
  prometheus::Histogram& decode_;
  prometheus::Histogram& inference_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& generation_tokens_;
  prometheus::Counter& prefix_queries_;
  prometheus::Counter& prefix_hits_;
  prometheus::Counter& preemptions_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_VLLM_METRICS_H_
