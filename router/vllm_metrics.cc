#include "router/vllm_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

const std::vector<double> kPerToken = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                       .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokens = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

double S(absl::Duration d) { return absl::ToDoubleSeconds(d); }

}  // namespace

prometheus::Histogram& VllmMetrics::Seconds(const char* name, const char* help) {
  return metrics_->Histogram(absl::StrCat("vllm:request_", name, "_seconds"), help, kSeconds, labels_);
}

prometheus::Histogram& VllmMetrics::Tokens(const char* name, const char* help) {
  return metrics_->Histogram(absl::StrCat("vllm:request_", name, "_tokens"), help, kTokens, labels_);
}

prometheus::Counter& VllmMetrics::Count(const char* name, const char* help) {
  return metrics_->Counter(absl::StrCat("vllm:", name, "_total"), help, labels_);
}

VllmMetrics::VllmMetrics(Metrics* metrics, const MetricLabels& labels)
    : metrics_(metrics),
      labels_(labels),
      waiting_(metrics->Gauge("vllm:num_requests_waiting", "Requests waiting in the router or in workers", labels)),
      kv_usage_(metrics->Gauge("vllm:kv_cache_usage_perc", "KV blocks of decode workers in use, 0 to 1", labels)),
      per_token_(metrics->Histogram("vllm:request_time_per_output_token_seconds",
                                    "Time per output token after the first, by request", kPerToken, labels)),
      queue_(Seconds("queue_time", "Waiting before prefill")),
      prefill_(Seconds("prefill_time", "In prefill")),
      decode_(Seconds("decode_time", "From the first token to the last")),
      inference_(Seconds("inference_time", "From the start of prefill to the last token")),
      prompt_tokens_(Tokens("prompt", "Prompt tokens of a request")),
      generation_tokens_(Tokens("generation", "Generated tokens of a request")),
      prefix_queries_(Count("prefix_cache_queries", "Prompt tokens looked up in a prefix cache")),
      prefix_hits_(Count("prefix_cache_hits", "Prompt tokens found in a prefix cache")),
      preemptions_(Count("num_preemptions", "Sequences preempted")) {}

void VllmMetrics::Ended(const absl::Status& status, const RequestStats& stats) {
  preemptions_.Increment(stats.num_preemptions);
  if (stats.prefill > absl::ZeroDuration()) {
    prefix_queries_.Increment(stats.prompt_tokens);
    prefix_hits_.Increment(stats.cached_tokens);
    queue_.Observe(S(stats.queue));
    prefill_.Observe(S(stats.prefill));
  }
  if (stats.completion_tokens > 0) {
    const absl::Duration decode = std::max(stats.total - stats.ttft, absl::ZeroDuration());
    decode_.Observe(S(decode));
    inference_.Observe(S(stats.prefill + decode));
    if (stats.completion_tokens > 1) per_token_.Observe(S(decode) / (stats.completion_tokens - 1));
  }
  if (!status.ok()) return;
  prompt_tokens_.Observe(stats.prompt_tokens);
  generation_tokens_.Observe(stats.completion_tokens);
}

void VllmMetrics::Collect(const std::vector<WorkerSnapshot>& workers, uint64_t queued) {
  uint64_t waiting = queued, free_blocks = 0, total_blocks = 0;
  for (const WorkerSnapshot& worker : workers) {
    if (worker.state == WorkerState::kLost) continue;
    // More than fit into one step wait, for all that the router sees.
    if (worker.max_sequences > 0 && worker.sequences > worker.max_sequences) {
      waiting += worker.sequences - worker.max_sequences;
    }
    // The pool that a generation lives in, and that runs full first.
    if (worker.role != Role::kDecode) continue;
    free_blocks += worker.free_blocks;
    total_blocks += worker.total_blocks;
  }
  waiting_.Set(static_cast<double>(waiting));
  kv_usage_.Set(total_blocks == 0 ? 0 : 1 - static_cast<double>(free_blocks) / static_cast<double>(total_blocks));
}

}  // namespace baton::router
