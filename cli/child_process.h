// One child of `baton up`: started so that it cannot outlive its parent, with its stdout (event lines) and stderr (log
// lines) as non-blocking pipes.
//
// Thread contract: one thread, the one that starts the child: the kernel kills a child when the *thread* that started
// it ends.
#ifndef BATON_CLI_CHILD_PROCESS_H_
#define BATON_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

// Bytes to lines. Lines over 16 KiB are cut; the cut part starts the next line.
class LineBuffer {
 public:
  // Appends complete lines, without their newline.
  void Push(const char* bytes, size_t size, std::vector<std::string>* lines);
  // The unfinished rest, if any.
  void Flush(std::vector<std::string>* lines);

 private:
  std::string rest_;
};

class ChildProcess {
 public:
  // argv[0] is a path. The child gets an empty stdin, its own process group (so that Ctrl-C reaches only the parent,
  // which decides), no blocked signals, and SIGKILL when this thread dies. NOT_FOUND: no such program.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& argv);
  // Kills and collects it if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // -1 once closed.
  int stdout_fd() const { return stdout_fd_; }
  int stderr_fd() const { return stderr_fd_; }

  // What is there now; closes a pipe at its end.
  std::vector<std::string> ReadStdout();
  std::vector<std::string> ReadStderr();

  // True once the process ended (and is collected).
  bool Ended();
  // "exit code 1", "signal 9 (Killed)"; only after Ended().
  std::string EndReason() const;
  // Exit code 0; only after Ended().
  bool EndedWell() const;
  void Signal(int signal_number);

 private:
  ChildProcess() = default;
  static std::vector<std::string> Read(int* fd, LineBuffer* buffer);

  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  int stderr_fd_ = -1;
  LineBuffer stdout_lines_;
  LineBuffer stderr_lines_;
  bool ended_ = false;
  int wait_status_ = 0;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHILD_PROCESS_H_
