#include "common/metrics.h"

#include <prometheus/text_serializer.h>

namespace baton {

const std::vector<double>& LatencyBuckets() {
  static const auto* buckets = new std::vector<double>{
      0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
  return *buckets;
}

const std::vector<double>& ByteBuckets() {
  static const auto* buckets = [] {
    auto* b = new std::vector<double>();
    for (double v = 4096; v <= 16.0 * 1024 * 1024 * 1024; v *= 4) b->push_back(v);
    return b;
  }();
  return *buckets;
}

void RaiseTo(prometheus::Counter* counter, double total) {
  if (total > counter->Value()) counter->Increment(total - counter->Value());
}

// Merge: asking again for a name that exists gives the family that exists.
Metrics::Metrics() : registry_(prometheus::Registry::InsertBehavior::Merge), hooks_(std::make_shared<Hooks>()) {}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets, const MetricLabels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(
      labels, prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end()));
}

std::shared_ptr<void> Metrics::OnCollect(std::function<void()> update) {
  MutexLock lock(&hooks_->mu);
  const int64_t id = hooks_->next_id++;
  hooks_->updates[id] = std::move(update);
  return std::shared_ptr<void>(static_cast<void*>(this), [hooks = hooks_, id](void*) {
    MutexLock lock(&hooks->mu);
    hooks->updates.erase(id);
  });
}

std::string Metrics::Expose() {
  {
    MutexLock lock(&hooks_->mu);
    for (const auto& [id, update] : hooks_->updates) update();
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace baton
