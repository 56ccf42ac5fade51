// What this machine can do at most, measured in the run that quotes it: every figure of engine_bench is a share of one of
// these.
#ifndef BATON_TESTS_BENCH_PEAKS_H_
#define BATON_TESTS_BENCH_PEAKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/bench/bench_clock.h"

namespace baton::bench {

// Each with `threads` threads together; 0 when the processor lacks the instruction. A multiply-add counts as two.
struct Peaks {
  double f32_gflops = 0;       // 512-bit (else 256-bit) fused multiply-adds
  double int8_gops = 0;        // AVX-512 VNNI
  double bf16_gflops = 0;      // AVX-512 BF16
  double amx_int8_gops = 0;    // tiles; a different unit from the vectors'
  double amx_bf16_gflops = 0;
  double read_gbps = 0;        // streamed from 1 GB of huge pages, more than a share of any last-level cache
};

// Thread contract: one caller. Keeps the memory that is read, so that repeated measurements touch the same pages.
class PeakMeter {
 public:
  explicit PeakMeter(int threads, size_t read_bytes = size_t{1} << 30);
  ~PeakMeter();
  PeakMeter(const PeakMeter&) = delete;
  PeakMeter& operator=(const PeakMeter&) = delete;

  // The best of a few short runs of each: a limit is what was possible, not what the neighbours left.
  Peaks Measure(ClockKind clock);

 private:
  double Read(ClockKind clock) const;

  const int threads_;
  const size_t read_bytes_;
  uint8_t* memory_ = nullptr;
  void* mapping_ = nullptr;
};

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_PEAKS_H_
