// Counters, gauges and histograms of one process, in Prometheus's text form. A thin layer over prometheus-cpp that
// keeps names in one style (baton_...) and adds gauges that are computed when somebody looks.
//
// Thread contract: thread-safe. References stay valid as long as the Metrics object.
#ifndef BATON_COMMON_METRICS_H_
#define BATON_COMMON_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"

namespace baton {

using MetricLabels = std::map<std::string, std::string>;

// The stations of a request, the label `station` of baton_station_seconds in every process that runs one.
inline constexpr const char* kStations[] = {"tokenize", "prefill", "logits", "sample", "emit", "stop"};

// Seconds, from 50 us (a step of a small model) to 60 s.
const std::vector<double>& LatencyBuckets();
// Bytes, 4 KiB to 16 GiB.
const std::vector<double>& ByteBuckets();

// For counters that something else keeps: raises `counter` to `total`. One caller at a time.
void RaiseTo(prometheus::Counter* counter, double total);

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same object. Labels have a bounded set of values: never a request id.
  prometheus::Counter& Counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                                   const MetricLabels& labels = {});

  // Called before each exposition, to set gauges from a snapshot. Returns a handle whose destruction removes the
  // function (and waits for a running call), so that it may look at shorter-lived objects.
  std::shared_ptr<void> OnCollect(std::function<void()> update);

  // Text exposition format 0.0.4.
  std::string Expose();

 private:
  struct Hooks {
    Mutex mu;
    int64_t next_id ABSL_GUARDED_BY(mu) = 0;
    std::map<int64_t, std::function<void()>> updates ABSL_GUARDED_BY(mu);
  };
  prometheus::Registry registry_;
  std::shared_ptr<Hooks> hooks_;
};

}  // namespace baton

#endif  // BATON_COMMON_METRICS_H_
