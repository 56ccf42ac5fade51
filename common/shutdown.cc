#include "common/shutdown.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace baton {
namespace {

// What the kernel sends when the parent dies. A signal of its own: a parent with several threads that ends has each of
// them take over the children of the one before, so it comes several times, and must not pass for somebody's second
// SIGTERM, which says to end at once.
int ParentDied() { return SIGRTMIN; }

}  // namespace

ShutdownSignals::ShutdownSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, ParentDied());
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a reader of stdout may go away; writes then fail with EPIPE
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Run(); });
}

ShutdownSignals::~ShutdownSignals() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_fd_, &one, sizeof(one));
  thread_.join();
  if (drain_thread_.joinable()) drain_thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void ShutdownSignals::Run() {
  while (true) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    Handle(static_cast<int>(info.ssi_signo));
  }
}

void ShutdownSignals::Handle(int signal_number) {
  if (signal_number != ParentDied() && ++signals_seen_ >= 2) _exit(128 + signal_number);
  if (drain_thread_.joinable()) return;
  // On a thread of its own, so that a second signal is seen while the drain runs.
  drain_thread_ = std::thread([this] { RequestDrain(); });
}

void ShutdownSignals::RequestDrain() {
  std::function<void()> on_drain;
  {
    MutexLock lock(&mu_);
    if (draining_) return;
    draining_ = true;
    on_drain = std::exchange(on_drain_, nullptr);
    cv_.SignalAll();
  }
  if (on_drain) on_drain();
}

void ShutdownSignals::OnDrain(std::function<void()> on_drain) {
  {
    MutexLock lock(&mu_);
    if (!draining_) {
      on_drain_ = std::move(on_drain);
      return;
    }
  }
  on_drain();
}

bool ShutdownSignals::draining() const {
  MutexLock lock(&mu_);
  return draining_;
}

void ShutdownSignals::WaitForDrain() {
  MutexLock lock(&mu_);
  while (!draining_) cv_.Wait(&mu_);
}

void DrainWhenParentDies() {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, ParentDied());
  // To the process, not the thread: only then does the signalfd of another thread see it.
  if (getppid() != parent) kill(getpid(), ParentDied());
}

}  // namespace baton
