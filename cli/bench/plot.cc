#include "cli/bench/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton::bench {
namespace {

constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 70, kRight = 16, kTop = 34, kBottom = 46;

struct Frame {
  double max_x, max_y;
  double X(double x) const { return kLeft + x / max_x * (kWidth - kLeft - kRight); }
  double Y(double y) const { return kHeight - kBottom - y / max_y * (kHeight - kTop - kBottom); }
};

std::string TickText(double value) { return absl::StrFormat("%.6g", value); }

std::string Text(double x, double y, absl::string_view anchor, absl::string_view text, absl::string_view extra = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, extra,
                         EscapeHtml(text));
}

std::string Axes(const Plot& plot, const Frame& f, const std::vector<double>& xs, const std::vector<double>& ys) {
  std::string out;
  for (const double y : ys) {
    absl::StrAppendFormat(&out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft,
                          kWidth - kRight, f.Y(y), f.Y(y));
    absl::StrAppend(&out, Text(kLeft - 6, f.Y(y) + 4, "end", TickText(y)));
  }
  for (const double x : xs) {
    absl::StrAppendFormat(&out, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", f.X(x),
                          f.X(x), f.Y(0), f.Y(0) + 4);
    absl::StrAppend(&out, Text(f.X(x), f.Y(0) + 18, "middle", TickText(x)));
  }
  absl::StrAppendFormat(&out, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft,
                        kWidth - kRight, f.Y(0), f.Y(0));
  absl::StrAppend(&out, Text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", plot.x_label));
  absl::StrAppend(&out, Text(14, (kTop + kHeight - kBottom) / 2, "middle", plot.y_label,
                             absl::StrFormat(" transform=\"rotate(-90 14 %.1f)\"", (kTop + kHeight - kBottom) / 2)));
  return out;
}

std::string Curve(const PlotSeries& series, const Frame& f, size_t colour) {
  std::string path, marks;
  bool pen_down = false;
  for (const PlotPoint& p : series.points) {
    if (!p.y) {
      pen_down = false;
      continue;
    }
    absl::StrAppendFormat(&path, "%s%.1f %.1f", pen_down ? " L" : " M", f.X(p.x), f.Y(*p.y));
    // A value between two gaps has no line to be seen by.
    if (!series.line || series.marks) {
      absl::StrAppendFormat(&marks, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", colour, f.X(p.x),
                            f.Y(*p.y), series.marks ? 4 : 2);
    }
    if (!p.label.empty()) absl::StrAppend(&marks, Text(f.X(p.x) + 6, f.Y(*p.y) - 6, "start", p.label));
    pen_down = true;
  }
  if (!series.line) return marks;
  return absl::StrCat("<path class=\"s", colour, "\" d=\"", path.empty() ? "" : path.substr(1), "\"/>\n", marks);
}

}  // namespace

std::vector<double> Ticks(double max, int most) {
  if (!(max > 0) || !std::isfinite(max)) max = 1;
  const double rough = max / std::max(1, most);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const int count = static_cast<int>(std::ceil(max / step - 1e-9));
  for (int i = 0; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string ToSvg(const Plot& plot) {
  double max_x = 0, max_y = 0;
  bool any = false;
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& p : series.points) {
      if (!p.y) continue;
      any = true;
      max_x = std::max(max_x, p.x);
      max_y = std::max(max_y, *p.y);
    }
  }
  const std::vector<double> xs = Ticks(max_x, 8), ys = Ticks(max_y, 5);
  const Frame frame{xs.back(), ys.back()};
  std::string out = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\" xmlns=\"http://www.w3.org/2000/svg\">\n", kWidth,
      kHeight, EscapeHtml(plot.title));
  absl::StrAppend(&out, Text(kLeft, 16, "start", plot.title, " class=\"title\""));
  absl::StrAppend(&out, Axes(plot, frame, xs, ys));
  double legend_x = kWidth - kRight;
  for (size_t i = plot.series.size(); i-- > 0;) {
    absl::StrAppend(&out, Curve(plot.series[i], frame, i));
    if (plot.series.size() == 1) continue;
    absl::StrAppend(&out, Text(legend_x, 16, "end", plot.series[i].name, absl::StrCat(" class=\"c", i, "\"")));
    legend_x -= 8.0 * static_cast<double>(plot.series[i].name.size()) + 14;
  }
  if (!any) absl::StrAppend(&out, Text(kWidth / 2, kHeight / 2, "middle", "nothing was measured"));
  return out + "</svg>\n";
}

}  // namespace baton::bench
