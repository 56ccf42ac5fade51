// Progress of loading a model in this process: a bar on a terminal, a line every 5 s elsewhere.
#ifndef BATON_CLI_LOADING_DISPLAY_H_
#define BATON_CLI_LOADING_DISPLAY_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "cli/loading_progress.h"
#include "cli/output.h"

namespace baton::cli {

class LoadingDisplay {
 public:
  explicit LoadingDisplay(const Output& out) : out_(out), started_(absl::Now()), last_(started_) {}
  ~LoadingDisplay() {
    if (shown_) out_.Raw("\r\x1b[K");
  }
  LoadingDisplay(const LoadingDisplay&) = delete;
  LoadingDisplay& operator=(const LoadingDisplay&) = delete;

  void Show(absl::string_view phase, double fraction) {
    const absl::Time now = absl::Now();
    if (now - last_ < (out_.stderr_is_tty() ? absl::Milliseconds(150) : absl::Seconds(5))) return;
    last_ = now;
    const std::vector<ProcessProgress> one = {{"model", std::string(phase), fraction, false}};
    if (out_.stderr_is_tty()) {
      out_.Raw(absl::StrCat("\r\x1b[K", ProgressBar(one, now - started_, 80)));
      shown_ = true;
    } else {
      out_.Note(ProgressLine(one, now - started_));
    }
  }

 private:
  const Output& out_;
  const absl::Time started_;
  absl::Time last_;
  bool shown_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOADING_DISPLAY_H_
