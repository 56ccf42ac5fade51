// The results of a load test as one HTML page that needs nothing else: TTFT, ITL, throughput and concurrency over time
// of each run, and for several runs the curve of throughput against ITL.
#ifndef BATON_CLI_BENCH_HTML_REPORT_H_
#define BATON_CLI_BENCH_HTML_REPORT_H_

#include <string>
#include <vector>

#include "cli/bench/report.h"

namespace baton::bench {

// Pure. Everything from outside (model name, label, errors) is escaped.
std::string HtmlReport(const std::vector<RunResult>& results);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_HTML_REPORT_H_
