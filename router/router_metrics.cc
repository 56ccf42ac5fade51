#include "router/router_metrics.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "router/vllm_metrics.h"

namespace baton::router {
namespace {

// As vLLM's dashboards expect them.
const std::vector<double> kVllmTtft = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kVllmItl = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kVllmE2e = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960};

// Workers name the transport; a metric's label must not be theirs to choose.
std::string Transport(const std::string& name) {
  return name == "ucx" || name == "grpc" || name == "loopback" || name == "none" ? name : "other";
}

std::string FinishedReason(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "abort";
  }
}

double S(absl::Duration d) { return absl::ToDoubleSeconds(d); }

}  // namespace

prometheus::Histogram& RouterMetrics::Station(const char* station) {
  return metrics_->Histogram("baton_station_seconds", "Seconds one request spent in a station, summed over its tokens",
                             LatencyBuckets(), {{"station", station}});
}

prometheus::Histogram& RouterMetrics::Latency(const std::string& name, const std::string& help) {
  return metrics_->Histogram(name, help, LatencyBuckets());
}

RouterMetrics::RouterMetrics(Metrics* metrics, std::string model_name, const std::string& fingerprint)
    : metrics_(metrics),
      vllm_labels_({{"model_name", model_name}, {"engine", "0"}}),
      running_(metrics->Gauge("baton_requests_in_flight", "Requests the router is working on")),
      vllm_running_(metrics->Gauge("vllm:num_requests_running", "Requests in flight", vllm_labels_)),
      refused_(metrics->Counter("baton_worker_refusals_total", "Registrations refused")),
      tokenize_(Station(kStations[0])),
      prefill_(Station(kStations[1])),
      emit_(Station(kStations[4])),
      stop_(Station(kStations[5])),
      router_queue_(Latency("baton_router_queue_seconds", "Seconds a request waited in the router for a placement")),
      queue_(Latency("baton_queue_seconds", "Seconds a request waited for a prefill worker's engine")),
      decode_queue_(Latency("baton_decode_queue_seconds", "Seconds a request waited for a place in decode's batch")),
      ttft_(Latency("baton_time_to_first_token_seconds", "From a request's arrival to its first token leaving")),
      itl_(Latency("baton_inter_token_latency_seconds", "Between two tokens of one choice")),
      total_(Latency("baton_request_seconds", "From a request's arrival to its end")),
      vllm_ttft_(
          metrics->Histogram("vllm:time_to_first_token_seconds", "Time to first token", kVllmTtft, vllm_labels_)),
      vllm_itl_(metrics->Histogram("vllm:inter_token_latency_seconds", "Inter-token latency", kVllmItl, vllm_labels_)),
      vllm_e2e_(metrics->Histogram("vllm:e2e_request_latency_seconds", "End to end latency", kVllmE2e, vllm_labels_)),
      prompt_tokens_(metrics->Counter("baton_prompt_tokens_total", "Tokens of prompts")),
      cached_tokens_(metrics->Counter("baton_cached_tokens_total", "Prompt tokens found in a prefix cache")),
      generated_tokens_(metrics->Counter("baton_generated_tokens_total", "Tokens sent to clients")),
      vllm_prompt_tokens_(metrics->Counter("vllm:prompt_tokens_total", "Prompt tokens", vllm_labels_)),
      vllm_generation_tokens_(metrics->Counter("vllm:generation_tokens_total", "Generated tokens", vllm_labels_)) {
  metrics
      ->Gauge("baton_model_info", "1; the model is in the labels", {{"model", model_name}, {"tokenizer", fingerprint}})
      .Set(1);
  VllmMetrics(metrics, vllm_labels_);
  Retries(absl::StatusCode::kUnavailable);  // there before the first, so that a rate sees it
}

void RouterMetrics::Ended(const absl::Status& status, const RequestStats& stats, absl::Duration emit) {
  running_.Decrement();
  vllm_running_.Decrement();
  if (!status.ok() && !absl::IsCancelled(status)) ++failed_;
  metrics_->Counter("baton_requests_total", "Requests ended, by status code", {{"code", RuleFor(status.code()).name}})
      .Increment();
  metrics_
      ->Counter("baton_requests_by_mode_total",
                "Requests ended, by who computed the prompt: a prefill worker (remote), the decode worker (local), nobody",
                {{"mode", stats.mode}})
      .Increment();
  total_.Observe(S(stats.total));
  vllm_e2e_.Observe(S(stats.total));
  VllmMetrics(metrics_, vllm_labels_).Ended(status, stats);
  prompt_tokens_.Increment(stats.prompt_tokens);
  vllm_prompt_tokens_.Increment(stats.prompt_tokens);
  cached_tokens_.Increment(stats.cached_tokens);
  generated_tokens_.Increment(stats.completion_tokens);
  vllm_generation_tokens_.Increment(stats.completion_tokens);
  if (stats.prompt_tokens > 0) tokenize_.Observe(S(stats.tokenize));
  if (stats.completion_tokens > 0) {
    ttft_.Observe(S(stats.ttft));
    vllm_ttft_.Observe(S(stats.ttft));
    emit_.Observe(S(emit));
    stop_.Observe(S(stats.stop));
  }
  for (const float ms : stats.itl_ms) {
    itl_.Observe(ms / 1000);
    vllm_itl_.Observe(ms / 1000);
  }
  if (stats.prefill > absl::ZeroDuration()) {
    prefill_.Observe(S(stats.prefill));
    queue_.Observe(S(stats.queue));
  }
  if (!stats.decode_worker.empty()) decode_queue_.Observe(S(stats.decode_queue));
  if (stats.kv.bytes() > 0) {
    const MetricLabels labels = {{"transport", Transport(stats.kv.transport())}};
    metrics_->Counter("baton_kv_bytes_total", "KV bytes handed over", labels)
        .Increment(static_cast<double>(stats.kv.bytes()));
    metrics_->Histogram("baton_kv_transfer_seconds", "Seconds of one hand-over", LatencyBuckets(), labels)
        .Observe(S(stats.transfer));
  }
  if (!status.ok()) return;
  for (const v1::FinishReason reason : stats.finish_reasons) {
    MetricLabels labels = vllm_labels_;
    labels["finished_reason"] = FinishedReason(reason);
    metrics_->Counter("vllm:request_success_total", "Choices finished", labels).Increment();
  }
}

void RouterMetrics::Judged(const absl::Status& status, const RequestStats& stats, const Promise& promise) {
  if (absl::IsCancelled(status)) return;
  const std::string reason = ReasonOf(status);
  // What is refused before it is tokenized says why. A text that takes too much to tokenize does not, and is not refused for load.
  const bool tokenized = stats.prompt_tokens > 0;
  const bool refused = (absl::IsResourceExhausted(status) && (tokenized || !reason.empty())) || reason == "PREDICTED_TTFT";
  if (!tokenized && !refused) return;
  if (refused) {
    metrics_
        ->Counter("baton_requests_refused_total", "Requests refused for load, by reason",
                  {{"reason", reason.empty() ? "WORKERS_FULL" : reason}})
        .Increment();
  }
  const float itl_ms = static_cast<float>(absl::ToDoubleMilliseconds(promise.itl));
  const size_t late = static_cast<size_t>(
      std::count_if(stats.itl_ms.begin(), stats.itl_ms.end(), [itl_ms](float ms) { return ms > itl_ms; }));
  // 99 of 100 gaps.
  const bool met = status.ok() && stats.ttft <= promise.ttft && late * 100 <= stats.itl_ms.size();
  const char* length = !tokenized                    ? "unknown"
                       : stats.prompt_tokens <= 256  ? "1-256"
                       : stats.prompt_tokens <= 1024 ? "257-1024"
                       : stats.prompt_tokens <= 4096 ? "1025-4096"
                                                     : "4097-";
  metrics_
      ->Counter("baton_goodput_requests_total",
                "Requests by prompt tokens and by whether they got the latency that was promised (where nothing is "
                "promised: whether they succeeded)",
                {{"prompt_tokens", length}, {"outcome", met ? "met" : refused ? "refused" : "missed"}})
      .Increment();
}

prometheus::Counter& RouterMetrics::Retries(absl::StatusCode why) {
  return metrics_->Counter("baton_request_retries_total", "Attempts after the first, by what ended the one before",
                           {{"code", RuleFor(why).name}});
}

void RouterMetrics::Retried(const absl::Status& why) { Retries(why.code()).Increment(); }

}  // namespace baton::router
