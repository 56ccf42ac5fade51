// The plots of spec row S6, as plain SVG: batch on a logarithmic axis, one line for each engine and context.
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

constexpr int kWidth = 640, kHeight = 400, kLeft = 70, kRight = 190, kTop = 40, kBottom = 50;
constexpr const char* kColors[] = {"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"};

using Line = std::map<int, double>;  // batch to value
using Lines = std::map<std::string, Line>;

// The next of 1, 2, 5, 10, ... that is not below x.
double RoundUpNicely(double x) {
  const double power = std::pow(10, std::floor(std::log10(x)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (x <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string Plot(const std::string& title, const std::string& unit, const Lines& lines) {
  int max_batch = 2;
  double max_value = 1e-9;
  for (const auto& [name, line] : lines) {
    for (const auto& [batch, value] : line) {
      max_batch = std::max(max_batch, batch);
      max_value = std::max(max_value, value);
    }
  }
  max_value = RoundUpNicely(max_value);
  const int plot_width = kWidth - kLeft - kRight, plot_height = kHeight - kTop - kBottom;
  const auto x = [&](double batch) { return kLeft + plot_width * std::log2(batch) / std::log2(max_batch); };
  const auto y = [&](double value) { return kTop + plot_height * (1 - value / max_value); };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%d\" y=\"22\" font-size=\"14\">%s</text>\n",
      kWidth, kHeight, kLeft, title);
  for (int i = 0; i <= 5; ++i) {
    const double value = max_value * i / 5;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          kLeft, y(value), kLeft + plot_width, y(value), kLeft - 6, y(value) + 4, value);
  }
  for (int batch = 1; batch <= max_batch; batch *= 2) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x(batch),
                          kTop + plot_height + 18, batch);
  }
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">sequences decoded together</text>\n",
                        kLeft + plot_width / 2, kHeight - 12);
  absl::StrAppendFormat(&svg, "<text x=\"8\" y=\"%d\">%s</text>\n", kTop - 4, unit);
  int index = 0;
  for (const auto& [name, line] : lines) {
    const char* color = kColors[index % std::size(kColors)];
    std::string points;
    for (const auto& [batch, value] : line) absl::StrAppendFormat(&points, "%.1f,%.1f ", x(batch), y(value));
    absl::StrAppendFormat(&svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", points,
                          color);
    for (const auto& [batch, value] : line) {
      absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>", x(batch), y(value), color);
    }
    absl::StrAppendFormat(&svg, "\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", kWidth - kRight + 12,
                          kTop + 12 + 18 * index, color, name);
    ++index;
  }
  return svg + "</svg>\n";
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file == nullptr || std::fclose(file) == 0;
  if (written && closed) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status WritePlots(const Report& report, const std::string& folder) {
  Lines throughput, itl;
  for (const CellResult& result : report.cells) {
    if (result.cell.prefill) continue;
    const auto add = [&](const std::string& engine, double rate) {
      const std::string name = absl::StrCat(engine, ", context ", result.cell.context);
      throughput[name][result.cell.batch] = rate;
      itl[name][result.cell.batch] = 1e3 * result.cell.batch / rate;
    };
    add("Baton", Median(result.ours));
    for (const auto& [name, samples] : result.peers) add(name, Median(samples));
  }
  const std::string title = absl::StrCat(report.model, ", ", report.threads, report.threads == 1 ? " thread" : " threads");
  absl::Status status = WriteFile(folder + "/throughput.svg", Plot(title, "tokens/s", throughput));
  if (status.ok()) status = WriteFile(folder + "/itl.svg", Plot(title, "ms between tokens", itl));
  return status;
}

}  // namespace baton::bench
