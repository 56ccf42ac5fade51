// A child process of a test: its events (one JSON line each on stdout), its stderr, its end.
#ifndef BATON_TESTS_E2E_PROCESS_H_
#define BATON_TESTS_E2E_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::e2e {

// User and system time of a process so far; 0 when there is none.
double CpuSeconds(pid_t pid);

// Thread-safe. Destruction kills the process if it still runs, and collects it.
class Process {
 public:
  // argv[0] is a path. The child gets SIGKILL when the test dies. It runs in the network namespace of that descriptor; -1:
  // in the caller's.
  static absl::StatusOr<std::unique_ptr<Process>> Start(std::vector<std::string> argv, int netns = -1);
  ~Process();

  pid_t pid() const { return pid_; }
  // The first event whose "event" is `name`; UNAVAILABLE with the end of stderr when the process ended or `timeout` passed.
  absl::StatusOr<nlohmann::json> WaitEvent(const std::string& name, absl::Duration timeout);
  void Signal(int signal);
  // Exit code, or 128 + signal; DEADLINE_EXCEEDED when it still runs after `timeout`.
  absl::StatusOr<int> WaitExit(absl::Duration timeout);
  std::string stdout_text();
  std::string stderr_text();

 private:
  Process() = default;
  void Read(int fd, std::string* into);

  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  std::thread out_reader_, err_reader_;
  Mutex mu_;
  CondVar changed_;
  std::string out_ ABSL_GUARDED_BY(mu_), err_ ABSL_GUARDED_BY(mu_);
  int open_pipes_ ABSL_GUARDED_BY(mu_) = 2;
  int exit_code_ = -1;
};

}  // namespace baton::e2e

#endif  // BATON_TESTS_E2E_PROCESS_H_
