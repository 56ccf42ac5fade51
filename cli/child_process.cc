#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxLine = 16 << 10;

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void BecomeChild(const std::vector<char*>& argv, pid_t parent, int out, int err, int exec_error) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before prctl took effect
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);  // the parent ignores it
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(127);
  ::execv(argv[0], argv.data());
  const int error = errno;
  (void)!::write(exec_error, &error, sizeof(error));
  ::_exit(127);
}

void CloseBoth(const int (&fds)[2]) {
  if (fds[0] >= 0) ::close(fds[0]);
  if (fds[1] >= 0) ::close(fds[1]);
}

}  // namespace

void LineBuffer::Push(const char* bytes, size_t size, std::vector<std::string>* lines) {
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] == '\n' || rest_.size() >= kMaxLine) {
      lines->push_back(std::move(rest_));
      rest_.clear();
      if (bytes[i] == '\n') continue;
    }
    rest_ += bytes[i];
  }
}

void LineBuffer::Flush(std::vector<std::string>* lines) {
  if (!rest_.empty()) lines->push_back(std::move(rest_));
  rest_.clear();
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& argv) {
  std::vector<char*> raw;
  for (const std::string& arg : argv) raw.push_back(const_cast<char*>(arg.c_str()));
  raw.push_back(nullptr);
  int out[2] = {-1, -1}, err[2] = {-1, -1}, exec_error[2] = {-1, -1};
  auto fail = [&](absl::string_view what, int error) {
    CloseBoth(out);
    CloseBoth(err);
    CloseBoth(exec_error);
    const std::string message = absl::StrCat(what, " ", argv[0], ": ", std::strerror(error), ".");
    return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  };
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0 || ::pipe2(exec_error, O_CLOEXEC) != 0) {
    return fail("Cannot make pipes for", errno);
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail("Cannot start", errno);
  if (pid == 0) BecomeChild(raw, parent, out[1], err[1], exec_error[1]);
  ::close(std::exchange(exec_error[1], -1));
  ::close(std::exchange(out[1], -1));
  ::close(std::exchange(err[1], -1));
  int error = 0;
  ssize_t n;
  do {  // ends at exec, which closes the other end
    n = ::read(exec_error[0], &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(error))) {
    ::waitpid(pid, nullptr, 0);
    return fail("Cannot run", error);
  }
  ::close(std::exchange(exec_error[0], -1));
  std::unique_ptr<ChildProcess> child(new ChildProcess());
  child->pid_ = pid;
  child->stdout_fd_ = out[0];
  child->stderr_fd_ = err[0];
  ::fcntl(out[0], F_SETFL, O_NONBLOCK);
  ::fcntl(err[0], F_SETFL, O_NONBLOCK);
  return child;
}

ChildProcess::~ChildProcess() {
  if (!Ended()) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  if (stdout_fd_ >= 0) ::close(stdout_fd_);
  if (stderr_fd_ >= 0) ::close(stderr_fd_);
}

std::vector<std::string> ChildProcess::Read(int* fd, LineBuffer* buffer) {
  std::vector<std::string> lines;
  char bytes[1 << 14];
  // Bounded, so that a child that never stops talking cannot hold up the others.
  for (int i = 0; i < 64 && *fd >= 0; ++i) {
    const ssize_t n = ::read(*fd, bytes, sizeof(bytes));
    if (n > 0) {
      buffer->Push(bytes, static_cast<size_t>(n), &lines);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      buffer->Flush(&lines);
      ::close(std::exchange(*fd, -1));
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return lines;
}

std::vector<std::string> ChildProcess::ReadStdout() { return Read(&stdout_fd_, &stdout_lines_); }
std::vector<std::string> ChildProcess::ReadStderr() { return Read(&stderr_fd_, &stderr_lines_); }

bool ChildProcess::Ended() {
  if (!ended_ && ::waitpid(pid_, &wait_status_, WNOHANG) == pid_) ended_ = true;
  return ended_;
}

std::string ChildProcess::EndReason() const {
  if (WIFEXITED(wait_status_)) return absl::StrCat("exit code ", WEXITSTATUS(wait_status_));
  const int signal_number = WTERMSIG(wait_status_);
  return absl::StrCat("signal ", signal_number, " (", ::strsignal(signal_number), ")");
}

bool ChildProcess::EndedWell() const { return WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0; }

void ChildProcess::Signal(int signal_number) {
  if (!Ended()) ::kill(pid_, signal_number);
}

}  // namespace baton::cli
