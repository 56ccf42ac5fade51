// The metrics of any process with an engine: stations, steps, tokens, KV blocks by state.
#ifndef BATON_ENGINE_ENGINE_METRICS_H_
#define BATON_ENGINE_ENGINE_METRICS_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "engine/engine.h"
#include "engine/runtime.h"

namespace baton::engine {

// Thread contract: thread-safe.
//
// Stations (baton_station_seconds{station=...}): "prefill" and "logits" are passes of the model with and without prompt
// chunks; "sample" is from the end of a pass to a token; "emit" hands a token to its stream; "stop" is from a request's
// last token to the end of its bookkeeping.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics* metrics);

  // To LoadedModel::Options::on_forward.
  void OnForward(const ForwardTiming& timing);
  // At OnToken, before and after the token is handed on; returns the moment, for OnEmitted and OnStopped.
  absl::Time OnSampled();
  void OnEmitted(absl::Time sampled);
  void OnStopped(absl::Time last_token);
  // A request that ended with an error before it ran; by code.
  void OnRefused(const absl::Status& status);
  void OnRequest() { requests_->Increment(); }

  // Gauges that are read from `model`'s engine at each scrape, and the model's identity. The handle ends that; it must go
  // before the model.
  [[nodiscard]] std::shared_ptr<void> Attach(LoadedModel* model);

 private:
  Metrics* const metrics_;
  prometheus::Histogram* prefill_;
  prometheus::Histogram* logits_;
  prometheus::Histogram* sample_;
  prometheus::Histogram* emit_;
  prometheus::Histogram* stop_;
  prometheus::Counter* rows_;
  prometheus::Counter* steps_;
  prometheus::Counter* tokens_;
  prometheus::Counter* requests_;
  std::atomic<int64_t> last_forward_end_ns_{0};
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_METRICS_H_
