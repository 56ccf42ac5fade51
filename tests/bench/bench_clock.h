// What a benchmark's seconds are.
//
// kWall: time passes. kCpu: only what this process's threads compute counts, which a machine shared with other work
// disturbs far less; for one thread only, because a waiting thread of a pool computes too.
#ifndef BATON_TESTS_BENCH_BENCH_CLOCK_H_
#define BATON_TESTS_BENCH_BENCH_CLOCK_H_

#include <time.h>

#include <algorithm>
#include <vector>

namespace baton::bench {

enum class ClockKind { kWall, kCpu };

inline double Seconds(ClockKind kind) {
  timespec t;
  clock_gettime(kind == ClockKind::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// 0 for none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_BENCH_CLOCK_H_
