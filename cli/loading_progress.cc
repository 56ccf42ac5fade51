#include "cli/loading_progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::cli {
namespace {

int Percent(double progress) { return static_cast<int>(std::lround(std::clamp(progress, 0.0, 1.0) * 100)); }

std::string Words(const std::vector<ProcessProgress>& processes) {
  std::vector<std::string> parts;
  for (const ProcessProgress& p : processes) {
    if (p.ready) {
      parts.push_back(absl::StrCat(p.name, " ready"));
    } else if (p.phase.empty()) {
      parts.push_back(absl::StrCat(p.name, " starting"));
    } else {
      parts.push_back(absl::StrCat(p.name, " ", p.phase, " ", Percent(p.progress), " %"));
    }
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

std::string ProgressBar(const std::vector<ProcessProgress>& processes, absl::Duration elapsed, int columns) {
  double sum = 0;
  for (const ProcessProgress& p : processes) sum += p.ready ? 1 : std::clamp(p.progress, 0.0, 1.0);
  const double all = processes.empty() ? 0 : sum / static_cast<double>(processes.size());
  constexpr int kCells = 24;
  const int full = static_cast<int>(all * kCells);
  std::string line = absl::StrCat("[", std::string(full, '#'), std::string(kCells - full, ' '), "] ", Percent(all),
                                  " %  ", absl::ToInt64Seconds(elapsed), " s  ", Words(processes));
  // One column is left free: a full line makes some terminals wrap.
  if (columns > 1 && static_cast<int>(line.size()) > columns - 1) line.resize(static_cast<size_t>(columns - 1));
  return line;
}

std::string ProgressLine(const std::vector<ProcessProgress>& processes, absl::Duration elapsed) {
  return absl::StrCat("loading for ", absl::ToInt64Seconds(elapsed), " s: ", Words(processes));
}

}  // namespace baton::cli
