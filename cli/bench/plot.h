// Line and point plots as SVG text. No script, no font, no outside reference; colours follow the page's.
//
// Thread contract: pure functions.
#ifndef BATON_CLI_BENCH_PLOT_H_
#define BATON_CLI_BENCH_PLOT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::bench {

struct PlotPoint {
  double x = 0;
  std::optional<double> y;  // none: a gap in the line
  std::string label;        // written beside the point, if not empty
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool line = true;    // else points only
  bool marks = false;  // points as well
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;  // at most 4 colours
};

// An <svg> element. Both axes start at 0; without any point it says so in place of the curves.
std::string ToSvg(const Plot& plot);

// Round values from 0 that reach `max`, at most `most` + 1 of them: 1, 2 or 5 times a power of ten apart.
std::vector<double> Ticks(double max, int most);

std::string EscapeHtml(absl::string_view text);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_PLOT_H_
