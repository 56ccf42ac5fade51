#include "router/request_stats.h"

#include <algorithm>

namespace baton::router {
namespace {

double Ms(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

double Percentile(std::vector<float> values, double p) {
  if (values.empty()) return 0;
  const size_t rank = static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(rank), values.end());
  return values[rank];
}

}  // namespace

v1::Summary MakeSummary(const RequestStats& stats, uint64_t seed) {
  v1::Summary summary;
  v1::Usage* usage = summary.mutable_usage();
  usage->set_prompt_tokens(stats.prompt_tokens);
  usage->set_cached_tokens(stats.cached_tokens);
  usage->set_completion_tokens(stats.completion_tokens);
  v1::Timings* timings = summary.mutable_timings();
  timings->set_tokenize_ms(Ms(stats.tokenize));
  timings->set_queue_ms(Ms(stats.queue));
  timings->set_prefill_ms(Ms(stats.prefill));
  timings->set_transfer_ms(Ms(stats.transfer));
  timings->set_reserve_ms(Ms(stats.reserve));
  timings->set_handover_ms(Ms(stats.handover));
  timings->set_second_token_ms(Ms(stats.second_token));
  timings->set_decode_queue_ms(Ms(stats.decode_queue));
  if (stats.ttft != absl::InfiniteDuration()) timings->set_first_token_ms(Ms(stats.ttft));
  timings->set_itl_p50_ms(Percentile(stats.itl_ms, 0.50));
  timings->set_itl_p99_ms(Percentile(stats.itl_ms, 0.99));
  timings->set_total_ms(Ms(stats.total));
  *summary.mutable_kv() = stats.kv;
  summary.set_prefill_worker(stats.prefill_worker);
  summary.set_decode_worker(stats.decode_worker);
  summary.set_seed(seed);
  return summary;
}

}  // namespace baton::router
