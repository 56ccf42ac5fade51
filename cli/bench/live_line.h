// The line that says how a load test goes while it runs.
#ifndef BATON_CLI_BENCH_LIVE_LINE_H_
#define BATON_CLI_BENCH_LIVE_LINE_H_

#include <cstdint>
#include <string>

#include "cli/bench/runner.h"
#include "cli/output.h"

namespace baton::bench {

// Pure. Rates are means since the start; latencies those of `progress`'s samples.
std::string FormatProgress(const Progress& progress, uint64_t total);

// On a terminal one line that is overwritten, else a line every 5 s; on stderr.
//
// Thread-compatible.
class LiveLine {
 public:
  // `total` requests; 0: not known.
  LiveLine(const cli::Output* out, uint64_t total) : out_(out), total_(total) {}
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  void Show(const Progress& progress);

 private:
  const cli::Output* const out_;
  const uint64_t total_;
  Progress latest_;
  double shown_s_ = 0;
  bool on_line_ = false;
};

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_LIVE_LINE_H_
