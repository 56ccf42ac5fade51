#include "tests/bench/goodput_plot.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace baton::bench {
namespace {

constexpr int kWidth = 720, kHeight = 380, kLeft = 60, kTop = 60, kBottom = 40, kRight = 20;
constexpr const char* kColors[] = {"#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e"};

}  // namespace

std::string BarPlot(const std::string& title, const std::string& unit, const std::vector<std::string>& series,
                    const std::vector<Bars>& groups) {
  double most = 1e-9;
  for (const Bars& group : groups) {
    for (const double value : group.values) most = std::max(most, value);
  }
  most *= 1.1;
  const double height = kHeight - kTop - kBottom;
  const double group_width = static_cast<double>(kWidth - kLeft - kRight) / static_cast<double>(groups.size());
  const double bar_width = group_width / (static_cast<double>(series.size()) + 1);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">%s, %s</text>\n",
      kWidth, kHeight, kLeft, title, unit);
  for (size_t s = 0; s < series.size(); ++s) {
    const double x = kLeft + 160.0 * static_cast<double>(s);
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.0f\" y=\"32\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%.0f\" y=\"43\">%s</text>\n",
                          x, kColors[s % 4], x + 18, series[s]);
  }
  absl::StrAppendFormat(&svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#888\"/>\n", kLeft, kHeight - kBottom,
                        kWidth - kRight, kHeight - kBottom);
  for (size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + group_width * static_cast<double>(g);
    for (size_t s = 0; s < groups[g].values.size(); ++s) {
      const double value = groups[g].values[s], bar = height * value / most;
      const double x = left + bar_width * (static_cast<double>(s) + 0.5), y = kHeight - kBottom - bar;
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>"
                            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"10\">%.2f</text>\n",
                            x, y, bar_width * 0.9, bar, kColors[s % 4], x + bar_width * 0.45, y - 3, value);
    }
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", left + group_width / 2,
                          kHeight - 18, groups[g].name);
  }
  return svg + "</svg>\n";
}

}  // namespace baton::bench
