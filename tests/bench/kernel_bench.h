// The kernels of one model, each alone: every product of a layer at several numbers of rows, and attention.
#ifndef BATON_TESTS_BENCH_KERNEL_BENCH_H_
#define BATON_TESTS_BENCH_KERNEL_BENCH_H_

#include <vector>

#include "tests/bench/model_bench.h"
#include "tests/bench/report.h"

namespace baton::bench {

// `integer`: products are measured against the int8 peak.
std::vector<KernelResult> MeasureKernels(ModelBench& bench, const Peaks& peaks, bool integer, ClockKind clock);

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_KERNEL_BENCH_H_
