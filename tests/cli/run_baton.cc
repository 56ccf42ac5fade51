#include "tests/cli/run_baton.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace baton::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::time_point After(double seconds) {
  return SteadyClock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

std::string BatonPath() {
  const char* srcdir = std::getenv("TEST_SRCDIR");
  if (srcdir != nullptr) return std::string(srcdir) + "/baton/cli/baton";
  const char* given = std::getenv("BATON_BINARY");
  return given != nullptr ? given : "bazel-bin/cli/baton";
}

std::string TempDir() {
  const char* dir = std::getenv("TEST_TMPDIR");
  return dir != nullptr ? dir : "/tmp";
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string ReadFileOrEmpty(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

BatonProcess::BatonProcess(const std::vector<std::string>& args, const std::string& input,
                           const std::vector<std::string>& env) {
  static std::atomic<int> counter{0};
  stem_ = TempDir() + "/baton." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  WriteFile(stem_ + ".in", input);
  const std::string binary = BatonPath();
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  for (const std::string& e : env) environment.insert(environment.begin(), const_cast<char*>(e.c_str()));
  environment.push_back(nullptr);
  const std::string in = stem_ + ".in", out = stem_ + ".out", err = stem_ + ".err";
  pid_ = ::fork();
  if (pid_ == 0) {
    const int fd0 = ::open(in.c_str(), O_RDONLY);
    const int fd1 = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    const int fd2 = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (fd0 < 0 || fd1 < 0 || fd2 < 0) ::_exit(126);
    ::dup2(fd0, 0);
    ::dup2(fd1, 1);
    ::dup2(fd2, 2);
    ::execve(binary.c_str(), argv.data(), environment.data());
    ::_exit(127);
  }
}

BatonProcess::~BatonProcess() {
  if (pid_ > 0 && !Ended()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }
}

void BatonProcess::Signal(int signal) const { ::kill(pid_, signal); }
std::string BatonProcess::Stdout() const { return ReadFileOrEmpty(stem_ + ".out"); }
std::string BatonProcess::Stderr() const { return ReadFileOrEmpty(stem_ + ".err"); }

bool BatonProcess::Ended() {
  if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return reaped_;
}

bool BatonProcess::WaitForOutput(const std::string& text, double seconds) const {
  const auto until = After(seconds);
  while (SteadyClock::now() < until) {
    if (Stdout().find(text) != std::string::npos || Stderr().find(text) != std::string::npos) return true;
    if (::kill(pid_, 0) != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

Result BatonProcess::Wait(double seconds) {
  const auto until = After(seconds);
  while (!Ended() && SteadyClock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (!reaped_) {
    ADD_FAILURE() << "baton did not end in " << seconds << " s; stderr: " << Stderr();
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
    reaped_ = true;
  }
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return Result{code, Stdout(), Stderr()};
}

Result RunBaton(const std::vector<std::string>& args, const std::string& input, const std::vector<std::string>& env) {
  return BatonProcess(args, input, env).Wait(30);
}

}  // namespace baton::cli
