// Grouped bars as plain SVG.
#ifndef BATON_TESTS_BENCH_GOODPUT_PLOT_H_
#define BATON_TESTS_BENCH_GOODPUT_PLOT_H_

#include <string>
#include <vector>

namespace baton::bench {

struct Bars {
  std::string name;            // of the group
  std::vector<double> values;  // one for each series
};

std::string BarPlot(const std::string& title, const std::string& unit, const std::vector<std::string>& series,
                    const std::vector<Bars>& groups);

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_GOODPUT_PLOT_H_
