// What engine_bench found, as a table for people, as JSON, and as plots.
#ifndef BATON_TESTS_BENCH_REPORT_H_
#define BATON_TESTS_BENCH_REPORT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/bench/model_bench.h"
#include "tests/bench/peaks.h"
#include "tests/bench/peer.h"

namespace baton::bench {

// Samples of one cell: ours, and those of each peer that runs it, pair by pair in time.
struct CellResult {
  Cell cell;
  std::vector<double> ours;                        // tokens a second
  std::map<std::string, std::vector<double>> peers;  // as many as ours

  double share = 0;        // of the limit, of our median
  const char* limit = "";  // which
  // Median of the ratios of pairs.
  double Ratio(const std::string& peer) const;
};

struct KernelResult {
  std::string name;
  double gops = 0;   // 1e9 operations a second
  double gbps = 0;   // of weights or KV read; 0 where that is not the question
  double share = 0;
  const char* limit = "";
};

struct Report {
  std::string commit, model, numerics, backend, clock, processor;
  int threads = 1;
  double load_seconds = 0;
  Peaks peaks;
  std::vector<CellResult> cells;
  std::vector<KernelResult> kernels;
};

// Fills `share` and `limit`. Prefill: tokens/s x 2 x non-embedding weights, the head once a prompt. Decode: bytes that a
// step must read (weights, head, every sequence's KV) x steps/s.
void FillShare(const ModelCost& cost, const Peaks& peaks, bool integer, CellResult* result);

std::string Table(const Report& report);
std::string Json(const Report& report);
// throughput.svg and itl.svg in `folder`: tokens a second, and milliseconds between a sequence's tokens, against batch.
absl::Status WritePlots(const Report& report, const std::string& folder);

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_REPORT_H_
