// The statistics of a load test.
//
// Percentile p of n values is the linear interpolation between closest ranks: with the values sorted as x[0..n-1], the
// value at position p / 100 * (n - 1). It is what numpy.percentile does by default, and so what the field's other load
// generators print. With n = 1 every percentile is that value; p99 of fewer than 100 values leans on the largest one.
//
// Thread contract: pure functions.
#ifndef BATON_CLI_BENCH_STATISTICS_H_
#define BATON_CLI_BENCH_STATISTICS_H_

#include <cstddef>
#include <span>
#include <vector>

namespace baton::bench {

// `sorted` ascending; `p` in [0, 100]. 0 for no values.
double Percentile(std::span<const double> sorted, double p);

struct Distribution {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  double std_dev = 0;  // of the values themselves (divided by n)
  double min = 0;
  double max = 0;
  std::vector<double> percentiles;  // in the order asked for
};

// All zero for no values.
Distribution Describe(std::vector<double> values, std::span<const double> percentiles);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_STATISTICS_H_
