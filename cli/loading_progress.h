// How far the processes of `up` are, as words.
#ifndef BATON_CLI_LOADING_PROGRESS_H_
#define BATON_CLI_LOADING_PROGRESS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace baton::cli {

struct ProcessProgress {
  std::string name;
  std::string phase;    // "weights"; empty before the first report
  double progress = 0;  // of that phase, [0, 1]
  bool ready = false;
};

// For a terminal of `columns`: "[#####     ] 42 %  prefill-0 weights 42 %, decode-0 ready". Never wider.
std::string ProgressBar(const std::vector<ProcessProgress>& processes, absl::Duration elapsed, int columns);
// For a log: "loading for 5 s: prefill-0 weights 42 %, decode-0 ready".
std::string ProgressLine(const std::vector<ProcessProgress>& processes, absl::Duration elapsed);

}  // namespace baton::cli

#endif  // BATON_CLI_LOADING_PROGRESS_H_
