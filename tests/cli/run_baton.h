// Runs the real `baton` binary and collects what it says.
#ifndef BATON_TESTS_CLI_RUN_BATON_H_
#define BATON_TESTS_CLI_RUN_BATON_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace baton::cli {

struct Result {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out;
  std::string err;
};

// A running `baton`, with its stdout and stderr in files. Killed in the destructor if it still runs.
class BatonProcess {
 public:
  // `env` are NAME=value strings added to this process's environment; stdin is `input`.
  BatonProcess(const std::vector<std::string>& args, const std::string& input = "",
               const std::vector<std::string>& env = {});
  ~BatonProcess();
  BatonProcess(const BatonProcess&) = delete;
  BatonProcess& operator=(const BatonProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  std::string Stdout() const;
  std::string Stderr() const;
  // True once `text` is in stdout (or stderr); false when the process ended or `seconds` passed before.
  bool WaitForOutput(const std::string& text, double seconds) const;
  // Waits for the end; kills it after `seconds`, which fails the test.
  Result Wait(double seconds);

 private:
  bool Ended();
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
  std::string stem_;
};

Result RunBaton(const std::vector<std::string>& args, const std::string& input = "",
                const std::vector<std::string>& env = {});

std::string BatonPath();
// A folder of this test run's own.
std::string TempDir();
void WriteFile(const std::string& path, const std::string& bytes);
std::string ReadFileOrEmpty(const std::string& path);

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_RUN_BATON_H_
