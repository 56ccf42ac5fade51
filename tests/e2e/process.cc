#include "tests/e2e/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace baton::e2e {

double CpuSeconds(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  unsigned long user = 0, system = 0;
  if (sscanf(text.c_str() + end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) return 0;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

absl::StatusOr<std::unique_ptr<Process>> Process::Start(std::vector<std::string> argv, int netns) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe2: ", strerror(errno)));
  }
  std::vector<char*> args;
  for (std::string& arg : argv) args.push_back(arg.data());
  args.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], 1);
    dup2(err[1], 2);
    if (netns >= 0 && setns(netns, CLONE_NEWNET) != 0) {
      dprintf(2, "setns: %s\n", strerror(errno));
      _exit(127);
    }
    execv(args[0], args.data());
    dprintf(2, "cannot run %s: %s\n", args[0], strerror(errno));
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  auto process = std::unique_ptr<Process>(new Process());
  process->pid_ = pid;
  process->out_fd_ = out[0];
  process->err_fd_ = err[0];
  Process* raw = process.get();
  process->out_reader_ = std::thread([raw] { raw->Read(raw->out_fd_, &raw->out_); });
  process->err_reader_ = std::thread([raw] { raw->Read(raw->err_fd_, &raw->err_); });
  return process;
}

Process::~Process() {
  if (exit_code_ < 0) {
    kill(pid_, SIGKILL);
    int status;
    waitpid(pid_, &status, 0);
  }
  out_reader_.join();
  err_reader_.join();
  close(out_fd_);
  close(err_fd_);
}

void Process::Read(int fd, std::string* into) {
  char buffer[4096];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    MutexLock lock(&mu_);
    if (n <= 0) {
      --open_pipes_;
      changed_.SignalAll();
      return;
    }
    into->append(buffer, n);
    changed_.SignalAll();
  }
}

absl::StatusOr<nlohmann::json> Process::WaitEvent(const std::string& name, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&mu_);
  size_t parsed = 0;
  while (true) {
    for (size_t end; (end = out_.find('\n', parsed)) != std::string::npos; parsed = end + 1) {
      const auto event = nlohmann::json::parse(out_.substr(parsed, end - parsed), nullptr, /*allow_exceptions=*/false);
      if (event.is_object() && event.value("event", "") == name) return event;
    }
    const bool ended = open_pipes_ == 0;
    const absl::Duration left = until - absl::Now();
    if (ended || left <= absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat("no event \"", name, "\" (", ended ? "the process ended" : "timeout",
                                                 "); stderr:\n", err_.substr(err_.size() > 2000 ? err_.size() - 2000 : 0)));
    }
    changed_.WaitWithTimeout(&mu_, left);
  }
}

void Process::Signal(int signal) {
  if (exit_code_ < 0) kill(pid_, signal);
}

absl::StatusOr<int> Process::WaitExit(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (exit_code_ < 0) {
    int status = 0;
    const pid_t done = waitpid(pid_, &status, WNOHANG);
    if (done == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (absl::Now() > until) return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
    absl::SleepFor(absl::Milliseconds(5));
  }
  return exit_code_;
}

std::string Process::stdout_text() {
  MutexLock lock(&mu_);
  return out_;
}

std::string Process::stderr_text() {
  MutexLock lock(&mu_);
  return err_;
}

}  // namespace baton::e2e
