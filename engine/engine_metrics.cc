#include "engine/engine_metrics.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/status.h"

namespace baton::engine {
namespace {

constexpr char kStationHelp[] = "Seconds spent at each station of a request's way";

prometheus::Histogram* Station(Metrics* metrics, const char* name) {
  return &metrics->Histogram("baton_station_seconds", kStationHelp, LatencyBuckets(), {{"station", name}});
}

prometheus::Counter& Refusals(Metrics* metrics, absl::StatusCode code) {
  return metrics->Counter("baton_refusals_total", "Requests that ended with an error, by status code",
                          {{"code", RuleFor(code).name}});
}

void Observe(prometheus::Histogram* histogram, absl::Duration d) {
  histogram->Observe(absl::ToDoubleSeconds(std::max(d, absl::ZeroDuration())));
}

}  // namespace

EngineMetrics::EngineMetrics(Metrics* metrics)
    : metrics_(metrics),
      prefill_(Station(metrics, "prefill")),
      logits_(Station(metrics, "logits")),
      sample_(Station(metrics, "sample")),
      emit_(Station(metrics, "emit")),
      stop_(Station(metrics, "stop")),
      rows_(&metrics->Counter("baton_rows_total", "Token positions computed")),
      steps_(&metrics->Counter("baton_steps_total", "Forward passes")),
      tokens_(&metrics->Counter("baton_tokens_total", "Tokens sampled")),
      requests_(&metrics->Counter("baton_requests_total", "Requests received")) {
  Refusals(metrics, absl::StatusCode::kResourceExhausted);  // there before the first, so that a rate sees it
}

void EngineMetrics::OnForward(const ForwardTiming& timing) {
  Observe(timing.has_prefill ? prefill_ : logits_, timing.duration);
  rows_->Increment(timing.num_rows);
  steps_->Increment();
  last_forward_end_ns_.store(absl::GetCurrentTimeNanos(), std::memory_order_relaxed);
}

absl::Time EngineMetrics::OnSampled() {
  const absl::Time now = absl::Now();
  Observe(sample_, now - absl::FromUnixNanos(last_forward_end_ns_.load(std::memory_order_relaxed)));
  tokens_->Increment();
  return now;
}

void EngineMetrics::OnEmitted(absl::Time sampled) { Observe(emit_, absl::Now() - sampled); }
void EngineMetrics::OnStopped(absl::Time last_token) { Observe(stop_, absl::Now() - last_token); }

void EngineMetrics::OnRefused(const absl::Status& status) { Refusals(metrics_, status.code()).Increment(); }

std::shared_ptr<void> EngineMetrics::Attach(LoadedModel* model) {
  metrics_
      ->Gauge("baton_model_info", "1; the model in the labels",
              {{"model", model->model_name()},
               {"architecture", model->architecture()},
               {"backend", model->backend_name()},
               {"weights", model->fingerprint().weights().substr(0, 12)},
               {"numerics", model->fingerprint().numerics_class()}})
      .Set(1);
  metrics_->Gauge("baton_weight_bytes", "Memory of the weights").Set(static_cast<double>(model->memory().total()));
  const auto blocks = [this](const char* state) {
    return &metrics_->Gauge("baton_kv_blocks", "KV blocks by state; the states add up to total", {{"state", state}});
  };
  auto* total = &metrics_->Gauge("baton_kv_pool_blocks", "KV blocks of the pool");
  auto* block_bytes = &metrics_->Gauge("baton_kv_block_bytes", "Bytes of one KV block");
  auto* running = &metrics_->Gauge("baton_running_sequences", "Sequences in the batch");
  auto* waiting = &metrics_->Gauge("baton_waiting_requests", "Requests not yet admitted");
  auto* waiting_tokens = &metrics_->Gauge("baton_waiting_tokens", "Prompt tokens of waiting requests");
  const auto copied = [this](const char* to) {
    return &metrics_->Counter("baton_kv_blocks_copied_total", "KV blocks copied between a device's memory and the host's",
                              {{"to", to}});
  };
  return metrics_->OnCollect([=, to_host = copied("host"), to_device = copied("device"),
                           engine = model->engine(), free = blocks("free"), active = blocks("active"),
                           leased = blocks("leased"), cached = blocks("cached"), quarantined = blocks("quarantined")] {
        const EngineLoad load = engine->load();
        free->Set(load.ledger.free);
        active->Set(load.ledger.active);
        leased->Set(load.ledger.leased);
        cached->Set(load.ledger.cached);
        quarantined->Set(load.ledger.quarantined);
        total->Set(load.ledger.total);
        block_bytes->Set(load.ledger.block_bytes);
        RaiseTo(to_host, static_cast<double>(load.blocks_to_host));
        RaiseTo(to_device, static_cast<double>(load.blocks_to_device));
        running->Set(load.running);
        waiting->Set(load.waiting);
        waiting_tokens->Set(load.waiting_tokens);
      });
}

}  // namespace baton::engine
